"""Sessions with an execution tree, made in a line, and the ways in which they end."""

from dataclasses import dataclass
from typing import Any

from tests.support.doors import Door
from tests.support.http import HttpClient, Reply
from tests.support.stack import Stack

DECIDED = "The launch is on 3 March."
ASKED = "Who pays the caterer?"
ANSWER = "The Surabaya office does."
OPEN_TOPIC = "Seating plan for the launch"
GIVEN_UP = "Hire a second band"


@dataclass(frozen=True, kw_only=True)
class Planted:
    """A node as a test plants it."""

    kind: str
    text: str
    status: str = "open"
    outcome: str | None = None
    parent: int | None = None
    folded: bool = False
    sources: tuple[str, ...] = ()


TREE = (
    Planted(kind="topic", text=OPEN_TOPIC),
    Planted(kind="decision", text=DECIDED, status="resolved", parent=1),
    Planted(kind="open_question", text=ASKED, status="resolved", outcome=ANSWER, parent=1),
    Planted(kind="open_question", text="Is there parking?", parent=1),
    Planted(kind="task", text="Send the menu to the caterer", parent=1),
    Planted(kind="task", text=GIVEN_UP, status="abandoned", outcome="Too dear.", parent=1),
    Planted(kind="topic", text="Venue", status="resolved", outcome="Booked the hall.", folded=True),
)
"""Of these, four may be promoted: a decision, an answer, a commitment and an outcome."""

PROMOTED = {
    ("decision", DECIDED),
    ("answer", f"{ASKED} — {ANSWER}"),
    ("commitment", "Send the menu to the caterer"),
    ("outcome", "Venue — Booked the hall."),
}


def start(http: HttpClient | Door, **more: Any) -> str:
    """A fresh session's id."""
    body = {"agentName": "guide", **more}
    made = http.call("POST", "/v1/sessions", body)
    assert made.status == 201, made.body
    return str(made.json["id"])


def plant(stack: Stack, session: str, *nodes: Planted) -> None:
    """Give a session these nodes, `TREE` without any, as if turns had left them there."""
    for number, one in enumerate(nodes or TREE, start=1):
        stack.database.rows(
            "INSERT INTO pal.session_nodes (session_id, number, tenant_id, parent, kind, text,"
            " status, outcome, sources, folded, opened_at, closed_at)"
            " SELECT id, %s, tenant_id, %s, %s, %s, %s, %s, %s, %s, now(),"
            " CASE WHEN %s <> 'open' THEN now() END FROM pal.sessions WHERE id = %s",
            number,
            one.parent,
            one.kind,
            one.text,
            one.status,
            one.outcome,
            list(one.sources),
            one.folded,
            one.status,
            session,
        )
    stack.database.rows(
        "UPDATE pal.session_states SET node_count = %s, active_node = 1 WHERE session_id = %s",
        len(nodes or TREE),
        session,
    )


def end(http: HttpClient | Door, session: str, **headers: str) -> Reply:
    """What the call to end a session is answered with."""
    return http.call("POST", f"/v1/sessions/{session}/end", headers=headers)


def ended(http: HttpClient | Door, session: str) -> int:
    """End a session: how much was promoted."""
    reply = end(http, session)
    assert reply.status == 200, reply.body
    assert reply.json["status"] == "ended"
    return int(reply.json["promoted"])


def episodes(stack: Stack) -> set[tuple[str, str]]:
    """(kind, content) of all episodes there are."""
    return set(stack.database.rows("SELECT kind, content FROM pal.memory_episodes"))


def interrupt(stack: Stack, session: str) -> None:
    """As a turn's second cut in a row leaves a session; its turn must have been cut once."""
    stack.database.rows(
        "UPDATE pal.session_heads SET lease_until = now() - interval '1 second'"
        " WHERE session_id = %s AND running_turn IS NOT NULL",
        session,
    )
    stack.node.sweep()
