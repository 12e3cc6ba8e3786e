"""Pins, tree, end and resume as callers have them, through every way in."""

from chalicelib.ids import is_id
from tests.support.answers import new_session, refused
from tests.support.doors import Door
from tests.support.sealing import PROMOTED, TREE, end, plant
from tests.support.stack import Stack


def test_session_is_worked_with_and_ended(door: Door, stack: Stack) -> None:
    """Lost if red: the life of a session, for callers of one of the ways in."""
    session = new_session(door, userId="ann")
    url = f"/v1/sessions/{session}"
    assert door.call("GET", f"{url}/pins").json == {"pins": []}
    assert door.call("GET", f"{url}/tree").json == {"active": None, "path": [], "nodes": []}
    pins = {"pins": ["Speak Indonesian."]}
    assert door.call("PUT", f"{url}/pins", pins).json == pins
    assert door.call("GET", f"{url}/pins").json == pins
    plant(stack, session)
    key = {"Idempotency-Key": "k"}
    first = end(door, session, **key)
    assert (first.status, first.json) == (200, {"status": "ended", "promoted": len(PROMOTED)})
    again = end(door, session, **key)
    assert (again.status, again.json) == (200, first.json)
    assert again.headers["idempotent-replayed"] == "true"
    assert door.call("GET", url).json["status"] == "ended"
    assert [one["id"] for one in door.call("GET", "/v1/sessions?status=ended").json] == [session]
    refused(door.call("POST", f"{url}/messages", {"content": "x"}), 409, "session_ended")
    refused(door.call("PUT", f"{url}/pins", pins), 409, "session_ended")
    refused(door.call("POST", f"{url}/resume"), 409, "session_ended")
    assert door.call("GET", f"{url}/pins").json == pins
    found = door.call("GET", "/v1/memory/search?q=when+is+the+launch&tiers=episodic").json
    [hit] = found["results"]
    assert (hit["kind"], hit["source_ref"], is_id(hit["id"], "epi")) == ("decision", session, True)


def test_tree_is_shown_with_all_of_its_nodes(door: Door, stack: Stack) -> None:
    """Lost if red: what the agent takes the conversation to be about, and why."""
    session = new_session(door)
    plant(stack, session)
    tree = door.call("GET", f"/v1/sessions/{session}/tree").json
    assert (tree["active"], tree["path"]) == ("n1", ["n1"])
    assert [one["id"] for one in tree["nodes"]] == [f"n{place + 1}" for place in range(len(TREE))]
    first, decision = tree["nodes"][:2]
    assert "parentId" not in first
    assert "closedAt" not in first
    assert (decision["parentId"], decision["kind"], decision["status"]) == (
        "n1",
        "decision",
        "resolved",
    )
    assert decision["closedAt"].endswith("Z")
    assert [one["folded"] for one in tree["nodes"]] == [one.folded for one in TREE]


def test_turns_leave_a_tree_that_names_their_messages(door: Door, stack: Stack) -> None:
    """Lost if red: the proof of each line of the tree."""
    session = new_session(door)
    url = f"/v1/sessions/{session}"
    content = {"content": "We need to plan the launch party in Surabaya with eighty guests."}
    door.stream("POST", f"{url}/messages", content).rest()
    stack.node.run(stack.node.services.engine.wait_idle())
    said = {one["id"] for one in door.call("GET", f"{url}/messages").json["messages"]}
    nodes = door.call("GET", f"{url}/tree").json["nodes"]
    assert nodes
    assert {source for one in nodes for source in one["sources"]} <= said
    assert all(one["sources"] for one in nodes)
