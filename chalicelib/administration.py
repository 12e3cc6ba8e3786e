"""Tenants and keys where no terminal reaches the database: what `migrate` is asked for by an event.

Whoever may invoke that function may make a key of any tenant, as whoever has pal_owner's login may
with `scripts/pal`. The key is in the answer and nowhere else.
"""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from chalicelib import auth
from chalicelib.db import Database, Login
from chalicelib.errors import NotFound


class _Order(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _Create(_Order):
    tenant: str
    scopes: list[Literal["sessions", "memory", "chats", "admin"]]
    name: str = "key"


class _Revoke(_Order):
    tenantId: str
    keyId: str


class _Keys(_Order):
    create: _Create | None = None
    revoke: _Revoke | None = None


async def administer_keys(owner: Login, order: Any) -> dict[str, str]:
    """Make a key, and its tenant if there is none of that name; or revoke one."""
    wanted = _Keys.model_validate(order)
    db = Database(owner, size=1)
    await db.open()
    try:
        made: dict[str, str] = {}
        if wanted.create is not None:
            made = await _create(db, wanted.create)
        if wanted.revoke is not None:
            key_id = wanted.revoke.keyId
            tenant_id = await auth.find_tenant(db, wanted.revoke.tenantId)
            await auth.revoke_key(db, tenant_id=tenant_id, key_id=key_id)
            made["revoked"] = key_id
        return made
    finally:
        await db.close()


async def _create(db: Database, wanted: _Create) -> dict[str, str]:
    try:
        tenant_id = await auth.find_tenant(db, wanted.tenant)
    except NotFound:
        tenant_id = await auth.create_tenant(db, name=wanted.tenant)
    key_id, key = await auth.create_key(
        db, tenant_id=tenant_id, name=wanted.name, scopes=wanted.scopes
    )
    return {"tenantId": tenant_id, "keyId": key_id, "key": key}
