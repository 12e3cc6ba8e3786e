"""Pins: what a session always has at hand, a text or one of its messages, by a caller's word."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from psycopg.types.json import Jsonb

from chalicelib.agents.definition import parse_definition
from chalicelib.auth import Principal
from chalicelib.context.pins import render_pins
from chalicelib.db import Database, Tx, load_queries
from chalicelib.errors import Conflict, InvalidField, NotFound
from chalicelib.ids import is_id
from chalicelib.memory.notes import quote
from chalicelib.providers.counting import estimate_tokens
from chalicelib.sessions import store

_QUERIES: Final = load_queries(__file__, "pins.sql")

PINS_AT_MOST: Final = 20
PIN_CHARACTERS: Final = 2_000
TOKENS: Final = 4_000
"""What the pins of a session may take together, of a model that has room for it."""

_SHARE: Final = 2
"""One part in so many of a smaller model's budget is theirs at most."""


class Pins:
    """What callers do with pins. `budget` is that of a chain of models, as `Models.budget`."""

    def __init__(self, db: Database, *, budget: Callable[[Sequence[str]], int]) -> None:
        self._db, self._budget = db, budget

    async def read(self, caller: Principal, session_id: str) -> dict[str, Any]:
        """The pins as they were given: `{pins}`; also of a session that has ended."""
        async with self._db.tenant(caller.tenant_id) as tx:
            found = await read_pins(tx, session_id)
        if found is None:
            raise _no_session()
        return {"pins": [one.get("messageId") or one["text"] for one in found]}

    async def write(
        self, caller: Principal, session_id: str, given: Sequence[str]
    ) -> dict[str, Any]:
        """Put these in place of the pins there are: `{pins}`.

        Raises NotFound, Conflict when the session has ended, InvalidField for a message that is
        not of this session, for a blank one, and where they take more than there is room for.
        """
        async with self._db.tenant(caller.tenant_id) as tx:
            head = await store.lock_head(tx, session_id)
            if head is None:
                raise _no_session()
            pins = await _resolved(tx, session_id, given)
            took, room = estimate_tokens(render_pins(pins)), await self._room(tx, session_id)
            if took > room:
                raise InvalidField.of(
                    "pins", f"take {took} tokens together, and there is room for {room}"
                )
            if head.status == "ended" or not await write_pins(tx, session_id, pins):
                raise Conflict(
                    "The session has ended; its pins stay as they are.", code="session_ended"
                )
        return {"pins": list(given)}

    async def _room(self, tx: Tx, session_id: str) -> int:
        cur = await tx.execute(_QUERIES["read_agent"], {"session_id": session_id})
        row = await cur.fetchone()
        specs = parse_definition(row[0]).models.primary if row else ()
        return min(TOKENS, self._budget(specs) // _SHARE)


async def read_pins(tx: Tx, session_id: str) -> list[dict[str, str]] | None:
    """The pins, each `{text}` or `{text, messageId}`; None if there is no such session."""
    cur = await tx.execute(_QUERIES["read_pins"], {"session_id": session_id})
    row = await cur.fetchone()
    return None if row is None else list(row[0])


async def write_pins(tx: Tx, session_id: str, pins: Sequence[Mapping[str, str]]) -> bool:
    """Set the pins of a session whose head is locked; False if they are sealed."""
    values = {"session_id": session_id, "pins": Jsonb([dict(one) for one in pins])}
    cur = await tx.execute(_QUERIES["write_pins"], values)
    return await cur.fetchone() is not None


async def _resolved(tx: Tx, session_id: str, given: Sequence[str]) -> list[dict[str, str]]:
    """The pins with the texts of the messages they name."""
    ids = sorted({one for one in given if is_id(one, "msg")})
    texts: dict[str, str] = {}
    if ids:
        values = {"session_id": session_id, "ids": ids}
        cur = await tx.execute(_QUERIES["read_messages"], values)
        texts = {row[0]: row[1] for row in await cur.fetchall()}
    pins = []
    for place, one in enumerate(given):
        pin = {"text": one}
        if is_id(one, "msg"):
            if one not in texts:
                raise InvalidField.of(f"pins.{place}", "is no message of this session")
            pin = {"text": texts[one], "messageId": one}
        if not quote(pin["text"]).strip('" '):
            raise InvalidField.of(f"pins.{place}", "has no text")
        pins.append(pin)
    return pins


def _no_session() -> NotFound:
    return NotFound("There is no such session.")
