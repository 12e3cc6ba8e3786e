"""What came of sessions, as callers list it and have it forgotten, through every way in."""

from typing import Any

import pytest

from tests.support.answers import new_session, refused
from tests.support.doors import Door
from tests.support.http import HttpClient
from tests.support.sealing import DECIDED, PROMOTED, Planted, ended, plant, start
from tests.support.stack import Stack

EPISODES = "/v1/memory/episodes"
SAYS = Planted(kind="decision", text=DECIDED, status="resolved", sources=("msg_1",))
DAY = "UPDATE pal.session_nodes SET closed_at = closed_at - interval '1 day' WHERE session_id = %s"


def listed(door: Door | HttpClient, query: str = "") -> list[dict[str, Any]]:
    reply = door.call("GET", EPISODES + query)
    assert reply.status == 200, reply.body
    return list(reply.json["episodes"])


def told(http: HttpClient, session: str) -> str:
    """The context of a session, as one text."""
    reply = http.call("POST", f"/v1/sessions/{session}/context", {"query": "When is the launch?"})
    return "\n".join(one["text"] for one in reply.json["sections"])


def test_what_came_of_sessions_is_listed_and_forgotten(door: Door, stack: Stack) -> None:
    """Lost if red: seeing what an assistant will say of earlier conversations, and a veto."""
    alone = new_session(door, userId="ann")
    shared = new_session(door, userId="ann", groupId="family")
    plant(stack, alone, SAYS)
    plant(stack, shared, SAYS)
    stack.database.rows(DAY, alone)
    assert [ended(door, alone), ended(door, shared)] == [1, 1]
    newest, oldest = listed(door)
    ann = oldest["person_id"]
    assert oldest == {
        "id": oldest["id"],
        "kind": "decision",
        "content": DECIDED,
        "origin": "promoted",
        "occurred_at": oldest["occurred_at"],
        "person_id": ann,
        "source_kind": "session",
        "source_ref": alone,
        "sources": ["msg_1"],
        "visible_to": "person",
    }
    in_group = {"source_ref": shared, "group_id": "family", "visible_to": "group"}
    assert newest == {**oldest, **in_group} | {name: newest[name] for name in ("id", "occurred_at")}
    assert listed(door, f"?personId={ann}") == [newest, oldest]
    assert listed(door, "?groupId=family&kind=decision") == [newest]
    assert listed(door, "?kind=answer") == listed(door, "?personId=x") == []
    refused(door.call("GET", EPISODES + "?kind=x"), 422, "invalid_field", "kind")
    refused(door.call("GET", EPISODES + "?pageToken=WzFd"), 422, "invalid_field", "pageToken")
    refused(door.call("DELETE", EPISODES + "/x"), 404, "not_found")
    assert door.call("DELETE", f"{EPISODES}/{oldest['id']}").status == 204
    refused(door.call("DELETE", f"{EPISODES}/{oldest['id']}"), 404, "not_found")
    assert listed(door) == [newest]


def test_episodes_are_paged(stack: Stack) -> None:
    """Lost if red: all but the first page of them, or one twice."""
    http = stack.http()
    session = start(http, userId="ann")
    plant(stack, session)
    assert ended(http, session) == len(PROMOTED)
    found, token = [], ""
    while True:
        reply = http.call("GET", f"{EPISODES}?pageSize=1{token}")
        found += reply.json["episodes"]
        if "x-next-page-token" not in reply.headers:
            break
        token = f"&pageToken={reply.headers['x-next-page-token']}"
    assert found == listed(http)
    assert {(one["kind"], one["content"]) for one in found} == PROMOTED


@pytest.mark.parametrize("group", [None, "family"])
def test_what_is_forgotten_is_told_no_more_and_stays_away(stack: Stack, group: str | None) -> None:
    """Lost if red: a veto that holds only until another session of the same plans ends."""
    http = stack.http()
    of = {"userId": "ann"} if group is None else {"userId": "ann", "groupId": group}
    first, second, asking = (start(http, **of) for _ in range(3))
    plant(stack, first, SAYS)
    plant(stack, second, SAYS)
    ended(http, first)
    assert told(http, asking).count(DECIDED) == 2  # in the narrative and as an episode
    [episode] = listed(http)
    assert http.call("DELETE", f"{EPISODES}/{episode['id']}").status == 204
    assert DECIDED not in told(http, asking)
    assert ended(http, second) == 0
    assert DECIDED not in told(http, asking)
    # what is decided once more, later, is news
    third = start(http, **of)
    plant(stack, third, SAYS)
    assert ended(http, third) == 1


def test_two_who_are_one_are_told_the_same_once(stack: Stack) -> None:
    """Lost if red: room in the prompt, to what two people came to who turned out to be one."""
    http = stack.http()
    for user in ("ann", "anna"):
        session = start(http, userId=user)
        plant(stack, session, SAYS)
        assert ended(http, session) == 1
    one, other = (one["person_id"] for one in listed(http))
    assert http.call("POST", "/v1/people/merge", {"from": one, "into": other}).status == 200
    reply = http.call("POST", f"/v1/sessions/{start(http, userId='ann')}/context", {})
    [section] = [part for part in reply.json["sections"] if part["kind"] == "episodes"]
    assert section["text"].count(DECIDED) == 1
    assert len(listed(http)) == 2
