"""`Idempotency-Key`: the same POST within 24 h has one effect and one answer.

The key's row is written in the transaction of the effect itself, so a process that dies between
the two cannot leave one without the other (a client whose first try timed out retries safely).
"""

import hashlib
from dataclasses import dataclass
from typing import Any, Final

import psycopg
from psycopg.types.json import Jsonb

from chalicelib.db import Tx, load_queries
from chalicelib.errors import IdempotencyConflict, InProgress, InvalidField

_QUERIES: Final = load_queries(__file__, "idempotency.sql")
_KEY_AT_MOST: Final = 255


@dataclass(kw_only=True)
class Once:
    """One idempotent call: where it went, its key, and the SHA-256 of its body.

    `replayed` tells, once it has begun, that it had been made before.
    """

    scope: str
    key: str
    body_hash: bytes
    replayed: bool = False

    @classmethod
    def of(cls, *, method: str, path: str, key: str | None, body: bytes) -> "Once | None":
        """The call's `Once`, None without a key; raises InvalidField on a bad key."""
        if key is None:
            return None
        if not 0 < len(key) <= _KEY_AT_MOST or not (key.isascii() and key.isprintable()):
            raise InvalidField.of(
                "Idempotency-Key", f"must be 1 to {_KEY_AT_MOST} printable ASCII characters"
            )
        return cls(scope=f"{method} {path}", key=key, body_hash=hashlib.sha256(body).digest())


async def begin_once(tx: Tx, once: Once | None) -> Any | None:
    """The first answer if this call was made before, else None: go on, then `finish_once`.

    Raises IdempotencyConflict for the same key with another body, InProgress while the first
    call has not ended.
    """
    if once is None:
        return None
    values = {"scope": once.scope, "key": once.key, "body_hash": once.body_hash}
    try:
        cur = await tx.execute(_QUERIES["begin_once"], values)
    except psycopg.errors.LockNotAvailable as exc:
        raise _in_progress() from exc
    if await cur.fetchone():
        return None
    row = await (await tx.execute(_QUERIES["read_once"], values)).fetchone()
    if row is None or bytes(row[0]) != once.body_hash:
        raise IdempotencyConflict("This Idempotency-Key was used with another body.")
    if row[1] is None:
        raise _in_progress()
    once.replayed = True
    return row[1]


async def finish_once(tx: Tx, once: Once | None, answer: Any) -> None:
    """Keep the answer (JSON) that later calls with this key get."""
    if once is not None:
        values = {"scope": once.scope, "key": once.key, "answer": Jsonb(answer)}
        await tx.execute(_QUERIES["finish_once"], values)


def _in_progress() -> InProgress:
    return InProgress("The first call with this Idempotency-Key still runs.", retry_after=1)
