"""The platform's API keys: from the environment, else from a secret of AWS Secrets Manager."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from chalicelib.config import Secret, Settings, provider_variable
from chalicelib.errors import ProviderUnavailable

_log = logging.getLogger(__name__)

_FRESH_SECONDS: Final = 300.0
_AGAIN_SECONDS: Final = 10.0  # after a reading that failed


def key_variable(name: str) -> str:
    """The variable that holds a provider's key: the vendor's own, or ours for `openai@name`."""
    return provider_variable(name, "api_key") if "@" in name else f"{name.upper()}_API_KEY"


class Keyring:
    """Reads `PAL_PROVIDER_SECRET` when a key is wanted that the environment lacks.

    What was read holds for five minutes, and longer while it cannot be read again.
    """

    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings, self._clock = settings, clock
        self._values: Mapping[str, Any] | None = None
        self._until = -1.0  # when to read again
        self._reading = asyncio.Lock()

    async def key(self, name: str) -> str:
        """The key of this provider, empty if there is none; ProviderUnavailable if unreadable."""
        settings = self._settings
        if "@" in name:
            set_here = settings.of_provider(name).api_key
        else:
            set_here = {"anthropic": settings.anthropic_api_key, "openai": settings.openai_api_key}[
                name
            ]
        if set_here or not settings.provider_secret:
            return set_here
        values = await self._secret()
        if values is None:
            raise ProviderUnavailable(
                f"The key of {name} could not be read from PAL_PROVIDER_SECRET.", again=False
            )
        value = values.get(key_variable(name))
        return Secret(value.strip()) if isinstance(value, str) else ""

    async def _secret(self) -> Mapping[str, Any] | None:
        if self._clock() >= self._until:
            async with self._reading:
                if self._clock() >= self._until:
                    await self._read()
        return self._values

    async def _read(self) -> None:
        try:
            values = await asyncio.to_thread(_fetch, self._settings.provider_secret)
            if not isinstance(values, dict):
                raise TypeError("no JSON object")
        except Exception as exc:
            # its text may quote the secret, of which the JSON may be broken
            _log.warning(
                "provider secret unreadable",
                extra={"action": "provider_secret_unreadable", "error": _kind(exc)},
            )
            self._until = self._clock() + _AGAIN_SECONDS
        else:
            self._values, self._until = values, self._clock() + _FRESH_SECONDS


def _fetch(name: str) -> Any:
    from aws_lambda_powertools.utilities import parameters
    from botocore.config import Config

    # not get_secret, which cannot be told how long to wait
    patience = Config(connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 2})
    secrets = parameters.SecretsProvider(boto_config=patience)
    try:
        return secrets.get(name, transform="json", max_age=0)
    finally:
        secrets.client.close()


def _kind(exc: Exception) -> str:
    """AWS's code for it, else the class."""
    told = getattr(exc.__context__, "response", None)
    return str(told["Error"]["Code"]) if isinstance(told, dict) else type(exc).__name__
