"""What a tenant brings of its own: keys of model vendors, and values its tools' headers refer to.

They are kept sealed and come out to providers and tools only, never to a caller, who is shown a
hint. What a process read it believes for 30 s; what it writes itself holds at once.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

from chalicelib.config import Secret
from chalicelib.db import Database, Tx, load_queries
from chalicelib.errors import InvalidField, NotFound
from chalicelib.vault import CannotOpen, Vault

Kind = Literal["provider", "tool"]

PROVIDERS_AT_MOST: Final = 32
TOOL_SECRETS_AT_MOST: Final = 200
_BELIEVED: Final = 30.0
_CACHED_AT_MOST: Final = 10_000
_HINT: Final = 4
_HINTED_FROM: Final = 12  # of a shorter one, four characters would tell too much

_log = logging.getLogger(__name__)
_QUERIES: Final = load_queries(__file__, "secrets.sql")


@dataclass(frozen=True, kw_only=True)
class ProviderKey:
    """A vendor's key as a tenant sets it; `base_url` where it is not the vendor's usual one."""

    api_key: Secret
    base_url: str | None = None


@dataclass(frozen=True, kw_only=True)
class Kept:
    """What may be shown of a secret. `hint` is its last four characters, empty for a short one."""

    name: str
    hint: str
    base_url: str | None
    updated_at: datetime


class Secrets:
    """The tenants' own keys and values. `clock` tells the seconds that readings are believed."""

    def __init__(
        self, db: Database, vault: Vault, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._db, self._vault, self._clock = db, vault, clock
        self._known: dict[tuple[str, Kind, str], tuple[float, Any]] = {}
        self._writes = 0

    async def tool_secret(self, tenant_id: str, name: str) -> str | None:
        """The value that `{{secret:name}}` stands for; None if there is none that opens."""

        async def read() -> Secret | None:
            async with self._db.tenant(tenant_id) as tx:
                cur = await tx.execute(_QUERIES["read_secret"], {"name": name})
                row = await cur.fetchone()
            return None if row is None else await self._open(tenant_id, "tool", name, row[0])

        found: Secret | None = await self._believe((tenant_id, "tool", name), read)
        return found

    async def provider_keys(self, tenant_id: str) -> Mapping[str, tuple[str, str | None]]:
        """(key, base URL) by the provider's name; the key of one that does not open is empty.

        It is there all the same, so that the platform's own key does not pay in its place.
        """

        async def read() -> dict[str, tuple[str, str | None]]:
            async with self._db.tenant(tenant_id) as tx:
                rows = await (await tx.execute(_QUERIES["read_providers"])).fetchall()
            keys = await asyncio.gather(
                *(self._open(tenant_id, "provider", name, sealed) for name, sealed, _ in rows)
            )
            opened = zip(rows, keys, strict=True)
            return {name: (key or "", url) for (name, _, url), key in opened}

        found: Mapping[str, tuple[str, str | None]] = await self._believe(
            (tenant_id, "provider", ""), read
        )
        return found

    async def provider_names(self, tx: Tx) -> set[str]:
        """The providers that the transaction's tenant has a key for, as it is in this moment."""
        return {one.name for one in await _list(tx, "provider")}

    async def list_providers(self, tenant_id: str) -> list[Kept]:
        """What the tenant has set of vendors' keys, by name."""
        async with self._db.tenant(tenant_id) as tx:
            return await _list(tx, "provider")

    async def put_providers(
        self, tenant_id: str, changes: Mapping[str, ProviderKey | None]
    ) -> list[Kept]:
        """Set the keys that are named, remove those that are None, and list all there are then.

        Raises InvalidField over the most that may be kept, Unavailable without a key to seal with.
        """
        sealed = {
            name: await self._vault.seal(
                key.api_key, tenant_id=tenant_id, kind="provider", name=name
            )
            for name, key in changes.items()
            if key is not None
        }
        try:
            async with self._db.tenant(tenant_id) as tx:
                for name, key in sorted(changes.items()):  # in one order, so that none deadlocks
                    if key is None:
                        await _delete(tx, "provider", name)
                    else:
                        hint = _hint(key.api_key)
                        await _put(tx, "provider", name, sealed[name], hint, key.base_url)
                kept = await _list(tx, "provider")
                if len(kept) > PROVIDERS_AT_MOST:
                    raise InvalidField.of("providers", f"may be {PROVIDERS_AT_MOST} at most")
        finally:
            self._forget((tenant_id, "provider", ""))
        return kept

    async def list_tool_secrets(self, tenant_id: str) -> list[Kept]:
        """What the tenant has set for its tools, by name."""
        async with self._db.tenant(tenant_id) as tx:
            return await _list(tx, "tool")

    async def put_tool_secret(self, tenant_id: str, name: str, value: str) -> Kept:
        """Set a value for tools; raises as `put_providers` does, and for one that is too long."""
        if len(value.encode()) > self._vault.longest:
            raise InvalidField.of("value", f"must have at most {self._vault.longest} bytes here")
        sealed = await self._vault.seal(value, tenant_id=tenant_id, kind="tool", name=name)
        try:
            async with self._db.tenant(tenant_id) as tx:
                await _put(tx, "tool", name, sealed, _hint(value), None)
                kept = {one.name: one for one in await _list(tx, "tool")}
                if len(kept) > TOOL_SECRETS_AT_MOST:
                    raise InvalidField.of("name", f"is one over {TOOL_SECRETS_AT_MOST} secrets")
        finally:
            self._forget((tenant_id, "tool", name))
        return kept[name]

    async def delete_tool_secret(self, tenant_id: str, name: str) -> None:
        """Remove a value; raises NotFound."""
        try:
            async with self._db.tenant(tenant_id) as tx:
                if not await _delete(tx, "tool", name):
                    raise NotFound("There is no such secret.")
        finally:
            self._forget((tenant_id, "tool", name))

    async def _believe(self, key: tuple[str, Kind, str], read: Callable[[], Any]) -> Any:
        known = self._known.get(key)
        now = self._clock()
        if known and now - known[0] < _BELIEVED:
            return known[1]
        writes = self._writes
        found = await read()
        if writes == self._writes:  # else what was read may be what was there before
            if len(self._known) >= _CACHED_AT_MOST:
                self._known.clear()
            self._known[key] = (now, found)
        return found

    def _forget(self, key: tuple[str, Kind, str]) -> None:
        # also when the writing failed: the commit may have happened
        self._writes += 1
        self._known.pop(key, None)

    async def _open(self, tenant_id: str, kind: Kind, name: str, sealed: Any) -> Secret | None:
        try:
            return await self._vault.open(bytes(sealed), tenant_id=tenant_id, kind=kind, name=name)
        except CannotOpen as exc:
            _log.warning(
                "a secret cannot be opened",
                extra={
                    "action": "secret_unreadable",
                    "tenant_id": tenant_id,
                    "secret": f"{kind} {name}",
                    "error": str(exc),
                },
            )
            return None


def _hint(secret: str) -> str:
    return secret[-_HINT:] if len(secret) >= _HINTED_FROM else ""


async def _list(tx: Tx, kind: Kind) -> list[Kept]:
    rows = await (await tx.execute(_QUERIES["list_secrets"], {"kind": kind})).fetchall()
    return [Kept(name=row[0], hint=row[1], base_url=row[2], updated_at=row[3]) for row in rows]


async def _put(
    tx: Tx, kind: Kind, name: str, sealed: bytes, hint: str, base_url: str | None
) -> None:
    values = {"kind": kind, "name": name, "sealed": sealed, "hint": hint, "base_url": base_url}
    await tx.execute(_QUERIES["put_secret"], values)


async def _delete(tx: Tx, kind: Kind, name: str) -> bool:
    cur = await tx.execute(_QUERIES["delete_secret"], {"kind": kind, "name": name})
    return await cur.fetchone() is not None
