"""Chains of models from settings, agents and tenants' own keys.

A chain's place is `provider:model`, split at the first `:`. A provider is a wire, or
`openai@name` / `anthropic@name` for another vendor on that wire. A new wire is a file here and a
line in `_WIRES`.
"""

import logging
import re
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Final, Literal

from chalicelib.config import Settings, SettingsError, provider_variable
from chalicelib.errors import NoModel, PalError, ProviderDenied, ProviderUnavailable
from chalicelib.providers.base import ModelEvent, ModelRequest, Provider, ProviderOptions
from chalicelib.providers.breaker import Breaker
from chalicelib.providers.chain import Chain
from chalicelib.providers.keyring import Keyring, key_variable
from chalicelib.providers.link import Link, Patience
from chalicelib.providers.windows import Window, window_of

_log = logging.getLogger(__name__)

KeyReader = Callable[[str], Awaitable[Mapping[str, tuple[str, str | None]]]]
"""Of a tenant's id: by provider name the tenant's own (API key, base URL or None)."""

# module and class by name, imported when used: a wire's imports are not every function's
_WIRES: Final = {
    "anthropic": ("chalicelib.providers.anthropic", "AnthropicProvider"),
    "bedrock": ("chalicelib.providers.bedrock", "BedrockProvider"),
    "offline": ("chalicelib.providers.offline", "OfflineProvider"),
    "openai": ("chalicelib.providers.openai", "OpenAIProvider"),
}
# those that other vendors speak too; their own vendors want a key
_VENDORS: Final = {
    "anthropic": Settings.anthropic_base_url,
    "openai": Settings.openai_base_url,
}
_NAMED: Final = re.compile(rf"({'|'.join(_VENDORS)})@[a-z0-9_-]+")

_OFFLINE: Final = (("offline", "offline"),)
_LINKS_AT_MOST: Final = 256


@dataclass(frozen=True, kw_only=True)
class _Identity:
    """What makes two places of chains the same: they share connections and breaker."""

    name: str
    model: str
    base_url: str = ""
    api_key: str = field(default="", repr=False)
    guarded: bool = False
    problem: str = ""  # why it cannot even be asked
    denied: bool = False  # and that is for want of a key


class _Absent:
    """Stands in a chain for a provider that cannot be asked, and says why."""

    def __init__(self, identity: _Identity) -> None:
        self.name, self.model, self._identity = identity.name, identity.model, identity

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """Raises what is wrong. See `Provider.stream`."""
        if self._identity.denied:
            raise ProviderDenied(self._identity.problem)
        raise ProviderUnavailable(self._identity.problem, again=False)
        yield  # a generator, though it comes to nothing

    async def close(self) -> None:
        """Nothing to close."""


class Models:
    """The models of this process. Chains are cheap to make: their parts are kept and shared.

    Raises SettingsError for a chain of the settings that cannot be made.
    """

    def __init__(self, settings: Settings, *, tenant_keys: KeyReader | None = None) -> None:
        self._settings, self._tenant_keys = settings, tenant_keys
        self._keyring = Keyring(settings)
        self._links: OrderedDict[_Identity, Link] = OrderedDict()
        self._check("PAL_PROVIDERS", settings.providers)
        self._check("PAL_PROVIDERS_FAST", settings.providers_fast)

    async def chain(
        self,
        *,
        tenant_id: str = "",
        specs: Sequence[str] = (),
        role: Literal["primary", "fast"] = "primary",
        own_keys: bool = False,
        stand_in: bool = True,
    ) -> Provider:
        """The chain of these `provider:model` texts, or of the settings where there are none.

        `own_keys` says that the tenant may have keys of its own; they win over the platform's.
        The chain is not to be closed; what cannot be called is a failed attempt of it. Without
        `stand_in` the offline one is left out: raises NoModel where that leaves nothing.
        """
        settings = self._settings
        own = await self._own(tenant_id) if own_keys else {}
        chosen = self._places(specs, role)
        if not stand_in:
            chosen = [place for place in chosen if place[0] != "offline"]
            if not chosen:
                raise NoModel("No model is configured; set PAL_PROVIDERS.")
        links = [await self._link(await self._identity(*place, own)) for place in chosen]
        return Chain(
            links, retries=settings.provider_retries, retry_wait=settings.provider_retry_wait
        )

    def first(self, specs: Sequence[str] = ()) -> str:
        """`provider:model` of the first place of such a chain: the one that answers as a rule."""
        return specs[0] if specs else ":".join(self._chosen("primary")[0])

    def budget(
        self, specs: Sequence[str] = (), role: Literal["primary", "fast"] = "primary"
    ) -> int:
        """The tokens that a request may take so that each place of such a chain has room for it."""
        return min(self._window(*place).budget for place in self._places(specs, role))

    def knows(self, name: str) -> bool:
        """Whether a chain may name this provider: a wire, or one that the settings configure."""
        if _NAMED.fullmatch(name):
            return bool(self._settings.of_provider(name).base_url)
        return name in _WIRES

    async def close(self) -> None:
        """Close all connections, as soon as no answer uses them."""
        while self._links:
            _, link = self._links.popitem()
            await link.retire()

    def _window(self, name: str, model: str) -> Window:
        if said := self._settings.of_provider(name).context_window:
            return Window(context=said)
        return window_of(name, model) or Window(context=self._settings.context_window)

    def _places(self, specs: Sequence[str], role: str) -> Sequence[tuple[str, str]]:
        return [_place(spec) for spec in specs] or self._chosen(role)

    def _chosen(self, role: str) -> Sequence[tuple[str, str]]:
        settings = self._settings
        fast = settings.providers_fast if role == "fast" else ()
        return fast or settings.providers or _OFFLINE

    def _check(self, variable: str, chosen: Sequence[tuple[str, str]]) -> None:
        for name, _ in chosen:
            if self.knows(name):
                continue
            if _NAMED.fullmatch(name):
                wanted = provider_variable(name, "base_url")
                raise SettingsError(f"{variable} names {name}, so {wanted} must be set.")
            wires = ", ".join([*_WIRES, *(f"{wire}@name" for wire in _VENDORS)])
            raise SettingsError(f"{variable} must name one of {wires}, not {name!r}.")

    async def _own(self, tenant_id: str) -> Mapping[str, tuple[str, str | None]]:
        if self._tenant_keys is None:
            return {}
        try:
            return await self._tenant_keys(tenant_id)
        except PalError:
            raise
        except Exception as exc:
            # without them the platform's keys would be used, and pay
            _log.error(
                "tenant keys unreadable",
                extra={"action": "tenant_keys_unreadable", "error": type(exc).__name__},
            )
            raise ProviderUnavailable("The tenant's own keys could not be read.") from exc

    async def _identity(
        self, name: str, model: str, own: Mapping[str, tuple[str, str | None]]
    ) -> _Identity:
        wire = name.partition("@")[0]
        if wire not in _WIRES or (wire != name and not _NAMED.fullmatch(name)) or not model:
            return _missing(name, model, f"{name}:{model} is no model that can be called.")
        # the platform's key never meets a tenant's URL; a tenant's key without one goes to ours
        key, url = own.get(name, (None, None))
        if key == "":
            told = f"The tenant's own key of {name} cannot be read: set it again."
            return _Identity(name=name, model=model, problem=told, denied=True)
        base_url = (url or self._base_url(name)).rstrip("/")
        if not base_url and wire in _VENDORS:
            return _missing(name, model, f"{name} has no base URL.")
        if key is None:
            try:
                key = await self._keyring.key(name) if wire in _VENDORS else ""
            except ProviderUnavailable as exc:
                return _missing(name, model, exc.message)
        if not key and base_url == _VENDORS.get(wire):
            told = f"{name} has no API key: set {key_variable(name)}."
            return _Identity(name=name, model=model, problem=told, denied=True)
        return _Identity(name=name, model=model, base_url=base_url, api_key=key, guarded=bool(url))

    def _base_url(self, name: str) -> str:
        settings = self._settings
        theirs = {"anthropic": settings.anthropic_base_url, "openai": settings.openai_base_url}
        return theirs.get(name) or settings.of_provider(name).base_url

    async def _link(self, identity: _Identity) -> Link:
        if link := self._links.get(identity):
            self._links.move_to_end(identity)
            return link
        link = self._links[identity] = self._made(identity)
        while len(self._links) > _LINKS_AT_MOST:
            _, oldest = self._links.popitem(last=False)
            await oldest.retire()
        return link

    def _made(self, identity: _Identity) -> Link:
        settings, said = self._settings, self._settings.of_provider(identity.name)
        if identity.problem:
            return Link(lambda: _Absent(identity), name=identity.name, model=identity.model)
        options = ProviderOptions(
            name=identity.name,
            model=identity.model,
            base_url=identity.base_url,
            api_key=identity.api_key,
            connect_timeout=said.connect_timeout or settings.provider_connect_timeout,
            guarded=identity.guarded,
        )
        return Link(
            lambda: _adapter(options),
            name=identity.name,
            model=identity.model,
            patience=Patience(
                first=said.first_timeout or settings.provider_first_timeout,
                idle=said.idle_timeout or settings.provider_idle_timeout,
                answer=said.answer_timeout or settings.provider_answer_timeout,
            ),
            breaker=Breaker(
                failures=settings.provider_breaker, rest=settings.provider_breaker_rest
            ),
        )


def _place(spec: str) -> tuple[str, str]:
    name, _, model = spec.partition(":")
    return name, model


def _missing(name: str, model: str, problem: str) -> _Identity:
    return _Identity(name=name, model=model, problem=problem)


def _adapter(options: ProviderOptions) -> Provider:
    module, name = _WIRES[options.name.partition("@")[0]]
    made: Provider = getattr(import_module(module), name)(options)
    return made
