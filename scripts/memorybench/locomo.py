"""Retrieval on real conversations, through the HTTP API: how much of the evidence is found.

The data is a file of conversations with questions and the turns that answer them; it is no part of
this repository.
"""

import json
import time
import urllib.parse
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

from benchlib.figures import Spread

_BATCH = 100
_LIMIT = 20
_AT = (5, 10, 20)


class Api:
    """The memory's API at a base URL."""

    def __init__(self, base: str, key: str) -> None:
        self._base, self._key = base.rstrip("/"), key

    def call(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """One call's answer."""
        url = self._base + path + ("?" + urllib.parse.urlencode(query) if query else "")
        request = urllib.request.Request(
            url,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"Bearer {self._key}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as reply:
            return json.loads(reply.read())


def _event(conversation: str, turn: dict[str, Any]) -> dict[str, Any]:
    who = turn["speaker"]
    return {
        "channel": "locomo",
        "kind": "message",
        "content": f"{who}: {turn['text']}",
        "occurredAt": turn["occurred_at"],
        "externalId": f"{conversation}:{turn['external_id']}",
        "groupId": conversation,
        "person": {"channel": "locomo", "handle": f"{conversation}:{who}", "name": who},
    }


def measure(api: Api, data: Path) -> tuple[dict[str, float], Spread]:
    """Recall and hit rate in per cent at 5, 10 and 20, and milliseconds a question."""
    conversations = json.loads(data.read_text())
    for one in conversations:
        events = [_event(one["id"], turn) for turn in one["turns"]]
        for start in range(0, len(events), _BATCH):
            api.call("POST", "/v1/memory/events", {"events": events[start : start + _BATCH]})
    shares: dict[str, list[float]] = defaultdict(list)
    times = []
    for one in conversations:
        for question in one["questions"]:
            began = time.perf_counter()
            answer = api.call(
                "GET",
                "/v1/memory/search",
                q=question["q"],
                groupId=one["id"],
                tiers="episodic",
                limit=_LIMIT,
            )
            times.append((time.perf_counter() - began) * 1000)
            found = [result.get("externalId") for result in answer["results"]]
            wanted = {f"{one['id']}:{each}" for each in question["evidence"]}
            for most in _AT:
                held = len(wanted.intersection(found[:most]))
                shares[f"recall@{most}"].append(held / len(wanted))
                shares[f"hit@{most}"].append(float(held > 0))
    figures = {name: 100 * sum(some) / len(some) for name, some in sorted(shares.items())}
    return {"questions": len(times), **figures}, Spread.of(times)
