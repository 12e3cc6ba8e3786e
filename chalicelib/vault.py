"""What tenants' own keys are sealed with before they are stored.

On AWS that is KMS, elsewhere a local key (AES-256-GCM). A sealed secret opens for its own tenant,
kind and name only, so a row that is copied to another tenant, or renamed, is worth nothing. Its
first byte says how it was sealed: what the local key sealed opens after a change to KMS, as long
as that key stays set.
"""

import asyncio
import base64
import logging
import os
import threading
from typing import Any, Final

from chalicelib.config import Secret, Settings, SettingsError
from chalicelib.errors import Unavailable

_log = logging.getLogger(__name__)

KEY_BYTES: Final = 32
_LOCAL: Final = b"\x01"
_KMS: Final = b"\x02"
_NONCE_BYTES: Final = 12
_LOCAL_AT_MOST: Final = 64_000
_KMS_AT_MOST: Final = 4_000  # its `Encrypt` takes 4,096 bytes
# with these KMS says that this will not be opened, not that it cannot be right now
_REFUSALS: Final = frozenset(
    {
        "AccessDeniedException",
        "DisabledException",
        "IncorrectKeyException",
        "InvalidCiphertextException",
        "InvalidKeyUsageException",
        "KMSInvalidStateException",
        "NotFoundException",
    }
)


class CannotOpen(Exception):
    """A sealed secret that this process has no key for; the text is safe to log."""


class Vault:
    """Seals and opens secrets with the key that the settings name, if they name one."""

    def __init__(self, settings: Settings) -> None:
        self._kms_key = settings.kms_key
        self._local_key = _read_key(settings.vault_key)
        self._kms: Any = None
        self._making = threading.Lock()

    @property
    def longest(self) -> int:
        """Bytes that a secret may have."""
        return _KMS_AT_MOST if self._kms_key else _LOCAL_AT_MOST

    async def seal(self, secret: str, *, tenant_id: str, kind: str, name: str) -> bytes:
        """What is stored in the secret's place; raises Unavailable where there is no key for it."""
        if self._kms_key:
            try:
                sealed = await asyncio.to_thread(
                    self._kms_encrypt, secret.encode(), _context(tenant_id, kind, name)
                )
            except CannotOpen as exc:
                _log.error("KMS refused", extra={"action": "kms_failed", "error": str(exc)})
                raise unavailable("The KMS key of PAL_KMS_KEY cannot be used.") from exc
            return _KMS + sealed
        if not self._local_key:
            raise unavailable(
                "No key is set to keep secrets with: set PAL_KMS_KEY, or PAL_VAULT_KEY without AWS."
            )
        nonce = os.urandom(_NONCE_BYTES)
        bound = _bound(tenant_id, kind, name)
        return _LOCAL + nonce + bytes(self._cipher().encrypt(nonce, secret.encode(), bound))

    async def open(self, sealed: bytes, *, tenant_id: str, kind: str, name: str) -> Secret:
        """The secret; raises CannotOpen, and Unavailable while KMS does not answer."""
        how, rest = sealed[:1], sealed[1:]
        if how == _KMS:
            context = _context(tenant_id, kind, name)
            return Secret((await asyncio.to_thread(self._kms_decrypt, rest, context)).decode())
        if how != _LOCAL:
            raise CannotOpen("it was sealed by a newer version")
        if not self._local_key:
            raise CannotOpen("PAL_VAULT_KEY is not set")
        cipher = self._cipher()
        from cryptography.exceptions import InvalidTag

        nonce, ciphertext = rest[:_NONCE_BYTES], rest[_NONCE_BYTES:]
        try:
            plain = cipher.decrypt(nonce, ciphertext, _bound(tenant_id, kind, name))
        except (InvalidTag, ValueError) as exc:
            raise CannotOpen("PAL_VAULT_KEY is not the key it was sealed with") from exc
        return Secret(plain.decode())

    def _cipher(self) -> Any:
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ModuleNotFoundError as exc:
            # it is not packaged for Lambda, where KMS is
            raise unavailable(
                "PAL_VAULT_KEY needs the package cryptography, which is not here; set PAL_KMS_KEY."
            ) from exc
        return AESGCM(self._local_key)

    def _kms_encrypt(self, plain: bytes, context: dict[str, str]) -> bytes:
        answer = self._ask_kms(
            "encrypt", KeyId=self._kms_key, Plaintext=plain, EncryptionContext=context
        )
        return bytes(answer["CiphertextBlob"])

    def _kms_decrypt(self, blob: bytes, context: dict[str, str]) -> bytes:
        # without KeyId: what an earlier key of PAL_KMS_KEY sealed still opens, if IAM lets it
        answer = self._ask_kms("decrypt", CiphertextBlob=blob, EncryptionContext=context)
        return bytes(answer["Plaintext"])

    def _ask_kms(self, operation: str, **values: Any) -> dict[str, Any]:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            answer: dict[str, Any] = getattr(self._kms_client(), operation)(**values)
        except (ClientError, BotoCoreError) as exc:
            code = type(exc).__name__
            if isinstance(exc, ClientError):
                code = str(exc.response.get("Error", {}).get("Code"))
            if code in _REFUSALS:
                raise CannotOpen(f"KMS says {code}") from exc
            _log.warning("KMS failed", extra={"action": "kms_failed", "error": code})
            raise unavailable("KMS did not answer; try again.") from exc
        return answer

    def _kms_client(self) -> Any:
        with self._making:  # several threads may be the first
            if self._kms is None:
                import boto3
                from botocore.config import Config

                patience = Config(  # a turn waits for it
                    connect_timeout=3, read_timeout=5, retries={"total_max_attempts": 2}
                )
                self._kms = boto3.client("kms", config=patience)
            return self._kms


def unavailable(message: str) -> Unavailable:
    """The error for a secret that can be neither kept nor read right now."""
    return Unavailable(message, code="vault_unavailable", retry_after=60)


def _read_key(text: str) -> bytes:
    if not text:
        return b""
    try:
        key = base64.b64decode(text, validate=True)
    except ValueError:
        key = b""
    if len(key) != KEY_BYTES:
        # the value is not told, nor is it in a traceback
        raise SettingsError(f"PAL_VAULT_KEY must be {KEY_BYTES} bytes in base64.")
    return key


def _context(tenant_id: str, kind: str, name: str) -> dict[str, str]:
    return {"tenant": tenant_id, "kind": kind, "name": name}


def _bound(tenant_id: str, kind: str, name: str) -> bytes:
    return "|".join((tenant_id, kind, name)).encode()  # neither id nor kind holds a |
