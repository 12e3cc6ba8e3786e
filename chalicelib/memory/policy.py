"""What a tenant has decided about its memory: what is formed, what is asked about, what is kept.

Observing is not remembering. What a session comes to and what a pass reads becomes memory by
itself (`auto`), once a person has approved it (`approve`) or not at all (`never`).
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, Literal, get_args

from psycopg.types.json import Jsonb

from chalicelib.auth import Principal
from chalicelib.db import Database, Tx, load_queries
from chalicelib.errors import InvalidField
from chalicelib.memory.distill.shapes import Origin
from chalicelib.memory.episodes import EpisodeKind

_QUERIES: Final = load_queries(__file__, "policy.sql")

Word = Literal["auto", "approve", "never"]
Formed = Literal["stated", "observed", "inferred"]
"""Origins that a fact may have before anyone has approved it."""

Kept = Literal["sealed", "episodic", "semantic", "narrative", "audit"]
"""What may be kept for a time only."""

DAYS_AT_MOST: Final = 36_500

_WORDS: Final = frozenset(get_args(Word))
_AUTO: Final[Word] = "auto"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A tenant's policy, whole: `keep_days` has only what is not kept for good."""

    timezone: str
    promote: Mapping[EpisodeKind, Word]
    form: Mapping[Formed, Word]
    keep_days: Mapping[Kept, int]

    def forms(self, origin: Origin) -> Word:
        """What becomes of a fact of this origin; a promoted one has been approved already."""
        return _AUTO if origin == "promoted" else self.form[origin]


async def read_policy(tx: Tx) -> Policy:
    """The policy of the transaction's tenant; the defaults where it has none."""
    row = await (await tx.execute(_QUERIES["read_policy"])).fetchone()
    return parse_policy("UTC", "{}") if row is None else parse_policy(row[0], row[1])


@lru_cache(maxsize=1_024)
def parse_policy(timezone: str, memory: str) -> Policy:
    """The policy of a row; what cannot be read of it is as the default: no turn fails over it."""
    stored = _object(json.loads(memory))
    days = _object(stored.get("keep_days"))
    return Policy(
        timezone=timezone,
        promote=MappingProxyType(_words(get_args(EpisodeKind), stored.get("promote"))),
        form=MappingProxyType(_words(get_args(Formed), stored.get("form"))),
        keep_days=MappingProxyType(
            {one: days[one] for one in get_args(Kept) if _is_days(days, one)}
        ),
    )


class Policies:
    """Shows and sets tenants' policies."""

    def __init__(self, db: Database) -> None:
        self._db = db

    async def get(self, caller: Principal) -> dict[str, Any]:
        """The whole policy, defaults included; what is kept for good has `null` days."""
        async with self._db.tenant(caller.tenant_id) as tx:
            return _shown(await read_policy(tx))

    async def put(
        self,
        caller: Principal,
        *,
        timezone: str,
        promote: Mapping[str, Word],
        form: Mapping[str, Word],
        keep_days: Mapping[str, int],
    ) -> dict[str, Any]:
        """Replace the policy, as `get` shows it then. Raises InvalidField for an unknown zone."""
        memory = {"promote": dict(promote), "form": dict(form), "keep_days": dict(keep_days)}
        async with self._db.tenant(caller.tenant_id) as tx:
            found = await (
                await tx.execute(_QUERIES["find_timezone"], {"name": timezone})
            ).fetchone()
            if found is None:
                raise InvalidField.of("timezone", "must be a name such as Asia/Jakarta or UTC")
            values = {"timezone": found[0], "memory": Jsonb(memory)}
            await tx.execute(_QUERIES["write_policy"], values)
            return _shown(await read_policy(tx))


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _words(names: tuple[Any, ...], given: Any) -> dict[Any, Word]:
    words = _object(given)
    return {one: words[one] if words.get(one) in _WORDS else _AUTO for one in names}


def _is_days(days: Mapping[str, Any], name: str) -> bool:
    value = days.get(name)
    return type(value) is int and 0 < value <= DAYS_AT_MOST


def _shown(policy: Policy) -> dict[str, Any]:
    return {
        "timezone": policy.timezone,
        "promote": dict(policy.promote),
        "form": dict(policy.form),
        "keep_days": {one: policy.keep_days.get(one) for one in get_args(Kept)},
    }
