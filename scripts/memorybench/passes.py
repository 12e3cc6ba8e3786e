"""Our own time and memory for a pass over many sessions, with a model that answers at once."""

import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import psutil

from chalicelib.memory.distill.passes import Distiller
from chalicelib.providers import Finished, ModelEvent, ModelRequest, TextDelta
from memorybench.place import Place
from memorybench.words import Language

_TOPICS = 12


class _Model:
    """Finds three things in whatever it is given."""

    name = model = "bench"

    def __init__(self) -> None:
        self.asked = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        self.asked += 1
        found = [
            {
                "topic": f"topic {(self.asked * 3 + n) % _TOPICS}",
                "content": f"Says thing number {self.asked * 3 + n}.",
                "confidence": 0.9,
                "personHint": None,
                "occurredAt": None,
                "line": None,
                "inferred": False,
            }
            for n in range(3)
        ]
        yield TextDelta(text=json.dumps({"distillates": found}))
        yield Finished(reason="stop", provider="bench", model="bench")

    async def close(self) -> None:
        """Nothing to close."""


class _Models:
    def __init__(self, model: _Model) -> None:
        self._model = model

    async def chain(self, **_: Any) -> _Model:
        return self._model


async def run_passes(at: Place, sessions: int, messages: int) -> dict[str, float]:
    """Seconds and megabytes for all slices until it has caught up, and what they came to."""
    tenant = at.tenant(900_001).tenant_id
    _write_sessions(at, tenant, sessions, messages // 2)
    model = _Model()
    distiller = Distiller(at.db, _Models(model))
    process = psutil.Process()
    before = peak = process.memory_info().rss
    slices = found = 0
    began = time.perf_counter()
    more = True
    while more:
        done = await distiller.run(tenant)
        slices, found, more = slices + 1, found + done.found, done.more
        peak = max(peak, process.memory_info().rss)
    seconds = time.perf_counter() - began
    return {
        "sessions": sessions,
        "seconds": seconds,
        "slices": slices,
        "chunks": model.asked,
        "found": found,
        "rss_before_mb": before / 2**20,
        "rss_peak_mb": peak / 2**20,
    }


def _write_sessions(at: Place, tenant: str, sessions: int, turns: int) -> None:
    language = Language(6)
    texts = [one.text for one in language.conversation("any", 2_000)]
    at.execute(
        "INSERT INTO pal.people (id, tenant_id, name, name_key)"
        " SELECT 'per_' || n, %s, 'Person ' || n, 'person ' || n FROM generate_series(1, %s) n",
        tenant,
        sessions,
    )
    at.execute(
        "INSERT INTO pal.sessions (id, tenant_id, agent_name, person_id)"
        " SELECT 'sess_' || n, %s, 'guide', 'per_' || n FROM generate_series(1, %s) n",
        tenant,
        sessions,
    )
    at.execute(
        "INSERT INTO pal.memory_events (id, tenant_id, occurred_at, channel, kind, person_id,"
        " session_id, turn_id, content)"
        " SELECT format('evt_%%s_%%s', lpad(s::text, 6, '0'), t), %s, now() - interval '1 day'"
        "     + t * interval '1 minute', 'session', 'turn', 'per_' || s, 'sess_' || s,"
        "     format('tur_%%s_%%s', s, t),"
        "     'user: ' || ($2::text[])[1 + (s * 7 + t) %% 2000] || E'\\nassistant: '"
        "              || ($2::text[])[1 + (s * 11 + t) %% 2000]"
        " FROM generate_series(1, %s) s, generate_series(1, %s) t".replace("$2", "%s"),
        tenant,
        texts,
        texts,
        sessions,
        turns,
    )
