"""Who calls: API keys, their scopes, and short-lived stream tokens.

A key is random; the database holds a salted hash of it, found through `pal.authenticate`. What a
process learnt of a key it believes for 30 s, so that a revocation holds everywhere within 60 s.
"""

import hashlib
import secrets
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal

import psycopg

from chalicelib.db import Database, Tx, load_queries
from chalicelib.errors import Conflict, Forbidden, InvalidField, NotFound, Unauthorized
from chalicelib.ids import new_id

Scope = Literal["sessions", "memory", "chats", "admin"]
SCOPES: Final[tuple[Scope, ...]] = ("sessions", "memory", "chats", "admin")

STREAM_TOKEN_SECONDS: Final = 300
_BELIEVED: Final = 30.0
_CACHED_AT_MOST: Final = 10_000
_NAME_AT_MOST: Final = 200

_QUERIES: Final = load_queries(__file__, "auth.sql")


@dataclass(frozen=True, kw_only=True)
class Principal:
    """An authenticated caller: a key of one tenant, or a stream token bound to one session."""

    tenant_id: str
    key_id: str
    scopes: frozenset[str]
    undefined_agents: bool = True
    only_session: str | None = None

    def require(self, scope: Scope) -> None:
        """Raise Forbidden unless this key has the scope; `admin` has every one."""
        if scope not in self.scopes and "admin" not in self.scopes:
            raise Forbidden(f"This key lacks the scope {scope}.")


def digest(secret: str) -> bytes:
    """What leaves this process in place of a key or token: its SHA-256."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).digest()


def new_key() -> str:
    """A fresh API key: `pal_` and 192 random bits."""
    return "pal_" + secrets.token_urlsafe(24)


class Authenticator:
    """Looks keys and tokens up, and remembers keys for a short while.

    `clock` tells the seconds of that while.
    """

    def __init__(self, db: Database, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._db, self._clock = db, clock
        self._known: dict[bytes, tuple[float, Principal]] = {}

    async def bearer(self, header: str | None) -> Principal:
        """The caller named by an `Authorization` header; raises Unauthorized."""
        scheme, _, key = (header or "").partition(" ")
        key = key.strip()
        if scheme.lower() != "bearer" or not key:
            raise Unauthorized(
                "Send an API key as `Authorization: Bearer <key>`.",
                headers={"WWW-Authenticate": "Bearer"},
            )
        hashed = digest(key)
        known = self._known.get(hashed)
        now = self._clock()
        if known and now - known[0] < _BELIEVED:
            return known[1]
        async with self._db.system() as tx:
            cur = await tx.execute(_QUERIES["authenticate"], {"digest": hashed})
            row = await cur.fetchone()
        if row is None:
            self._known.pop(hashed, None)
            raise Unauthorized(
                "This API key is unknown or revoked.", headers={"WWW-Authenticate": "Bearer"}
            )
        principal = Principal(
            key_id=row[0], tenant_id=row[1], scopes=frozenset(row[2]), undefined_agents=row[3]
        )
        if len(self._known) >= _CACHED_AT_MOST:
            self._known.clear()
        self._known[hashed] = (now, principal)
        return principal

    async def stream_token(self, token: str) -> Principal:
        """The reader that a stream token admits, to its one session; raises Unauthorized."""
        async with self._db.system() as tx:
            cur = await tx.execute(_QUERIES["read_stream_token"], {"digest": digest(token)})
            row = await cur.fetchone()
        if row is None:
            raise Unauthorized("This stream token is unknown or has expired.")
        return Principal(key_id=row[0], tenant_id=row[1], scopes=frozenset(), only_session=row[2])

    async def still_live(self, key_id: str) -> bool:
        """Whether a key that an open stream was opened with has not been revoked since."""
        async with self._db.system() as tx:
            cur = await tx.execute(_QUERIES["key_is_live"], {"key_id": key_id})
            row = await cur.fetchone()
        return bool(row and row[0])


async def issue_stream_token(
    db: Database, principal: Principal, *, session_id: str
) -> tuple[str, datetime]:
    """A fresh read-only token for one session and when it expires; raises NotFound."""
    token = "pst_" + secrets.token_urlsafe(24)
    values = {
        "digest": digest(token),
        "session_id": session_id,
        "key_id": principal.key_id,
        "seconds": STREAM_TOKEN_SECONDS,
    }
    async with db.tenant(principal.tenant_id) as tx:
        row = await (await tx.execute(_QUERIES["insert_stream_token"], values)).fetchone()
    if row is None:
        raise NotFound("There is no such session.")
    return token, row[0]


async def create_tenant(db: Database, *, name: str, undefined_agents: bool = True) -> str:
    """A new tenant's id; raises Conflict when the name is taken, InvalidField. As `pal_owner`."""
    _require_name(name)
    tenant_id = new_id("ten")
    values = {"id": tenant_id, "name": name, "undefined_agents": undefined_agents}
    try:
        async with db.tenant(tenant_id) as tx:
            await tx.execute(_QUERIES["insert_tenant"], values)
    except psycopg.errors.UniqueViolation as exc:
        raise Conflict(f"There is a tenant named {name} already.") from exc
    return tenant_id


async def list_tenants(db: Database) -> list[dict[str, Any]]:
    """Every tenant: `{id, name, undefined_agents, created_at}`. As `pal_owner`."""
    async with db.system() as tx:
        return await _dicts(tx, "list_tenants", {})


async def find_tenant(db: Database, name_or_id: str) -> str:
    """The id of a tenant told by its name or id; raises NotFound. As `pal_owner`."""
    for tenant in await list_tenants(db):
        if name_or_id in (tenant["id"], tenant["name"]):
            return str(tenant["id"])
    raise NotFound(f"There is no tenant {name_or_id}.")


async def create_key(
    db: Database, *, tenant_id: str, name: str, scopes: Iterable[str], key: str | None = None
) -> tuple[str, str]:
    """A new key's id and the key, which is shown this once. As `pal_owner`.

    `key` sets the key itself (the laptop's fixed one); if it exists already nothing changes.
    """
    _require_name(name)
    chosen = sorted(set(scopes))
    if not chosen or not set(chosen) <= set(SCOPES):
        raise InvalidField.of("scopes", f"must be some of {', '.join(SCOPES)}")
    key = key or new_key()
    key_id = new_id("key")
    values = {
        "id": key_id,
        "tenant_id": tenant_id,
        "name": name,
        "digest": digest(key),
        "hint": key[-4:],
        "scopes": chosen,
    }
    async with db.tenant(tenant_id) as tx:
        await tx.execute(_QUERIES["insert_key"], values)
    return key_id, key


async def list_keys(db: Database, *, tenant_id: str) -> list[dict[str, Any]]:
    """A tenant's keys without their secrets, revoked ones included. As `pal_owner`."""
    async with db.tenant(tenant_id) as tx:
        return await _dicts(tx, "list_keys", {})


async def revoke_key(db: Database, *, tenant_id: str, key_id: str) -> None:
    """Revoke a key; effective everywhere within 60 s. Raises NotFound. As `pal_owner`."""
    async with db.tenant(tenant_id) as tx:
        if not await (await tx.execute(_QUERIES["revoke_key"], {"key_id": key_id})).fetchone():
            raise NotFound(f"There is no key {key_id}.")


def _require_name(name: str) -> None:
    if not name.strip():
        raise InvalidField.of("name", "must not be blank")
    if len(name) > _NAME_AT_MOST or not name.isprintable():
        raise InvalidField.of(
            "name", f"must be at most {_NAME_AT_MOST} characters and hold no control character"
        )


async def _dicts(tx: Tx, query: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    cur = await tx.execute(_QUERIES[query], values)
    names = [column.name for column in cur.description or ()]
    return [dict(zip(names, row, strict=True)) for row in await cur.fetchall()]
