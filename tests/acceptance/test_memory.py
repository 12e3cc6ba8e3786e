"""People and the timeline through every way in: what a caller sends and gets."""

from typing import Any

import pytest

from tests.support.answers import new_session, refused
from tests.support.doors import Door
from tests.support.stack import Stack

PEOPLE, EVENTS = "/v1/people", "/v1/memory/events"
NUMBER = {"channel": "phone", "handle": "+62 812-3456-7890"}
AT = "2026-01-01T00:00:00Z"
EVENT = {"channel": "whatsapp", "kind": "message", "content": "hi", "occurredAt": AT}


def make(door: Door, **body: Any) -> dict[str, Any]:
    reply = door.call("POST", PEOPLE, body)
    assert reply.status == 201, reply.body
    return dict(reply.json)


def ids(door: Door, query: str) -> list[str]:
    reply = door.call("GET", PEOPLE + query)
    assert reply.status == 200, reply.body
    return [one["id"] for one in reply.json["people"]]


def test_a_person_is_one_across_channels(door: Door) -> None:
    """Lost if red: a memory that starts anew on every channel."""
    ann = make(door, name="Ann Lee", handles=[NUMBER], metadata={"vip": True})
    assert set(ann) == {"id", "name", "handles", "metadata", "created_at", "updated_at"}
    assert ann["handles"] == [
        {"channel": "phone", "handle": "+6281234567890", "as_given": "+62 812-3456-7890"}
    ]
    mail = {"channel": "email", "handle": "Ann@Example.com"}
    more = door.call("POST", f"{PEOPLE}/{ann['id']}/handles", mail)
    assert (more.status, len(more.json["handles"])) == (201, 2)
    again = door.call("POST", f"{PEOPLE}/{ann['id']}/handles", mail)
    assert (again.status, again.json["handles"]) == (201, more.json["handles"])

    person = {"channel": "email", "handle": "ann@example.COM", "name": "Another name"}
    stranger = {"channel": "whatsapp", "handle": "6281299999999", "name": "Budi"}
    batch = [
        {**EVENT, "person": one, "externalId": str(n)} for n, one in enumerate((person, stranger))
    ]
    reply = door.call("POST", EVENTS, {"events": batch})
    assert (reply.status, reply.json) == (200, {"inserted": 2, "duplicates": 0})
    assert door.call("POST", EVENTS, {"events": batch}).json == {"inserted": 0, "duplicates": 2}
    session = new_session(door, userId="budi")
    assert door.call("GET", f"/v1/sessions/{session}").json["userId"] == "budi"

    known = door.call("GET", PEOPLE).json["people"]
    told = [(one.get("name"), [handle["handle"] for handle in one["handles"]]) for one in known]
    assert told == [
        (None, ["budi"]),
        ("Budi", ["+6281299999999"]),
        ("Ann Lee", ["ann@example.com", "+6281234567890"]),
    ]
    assert known[2] == door.call("GET", f"{PEOPLE}/{ann['id']}").json


def test_people_are_found(door: Door) -> None:
    """Lost if red: the one person whom the operator looks for."""
    ann = make(door, name="Ann Lee", handles=[NUMBER])["id"]
    bob = make(door, name="Bob 100%_\\", handles=[{"channel": "user", "handle": "Annika"}])["id"]
    eve = make(door, name="Eve")["id"]
    assert ids(door, "") == [eve, bob, ann]
    assert ids(door, "?q=ann%20%20LEE") == [ann]
    assert ids(door, "?q=ANN") == [bob, ann]
    assert ids(door, "?q=812345") == [ann]
    for literal in ("%25", "_", "%5C", "0%25_"):
        assert ids(door, f"?q={literal}") == [bob], literal
    assert ids(door, "?channel=phone&handle=%2B62%20812%203456%207890") == [ann]
    assert ids(door, "?channel=User") == [bob]
    assert ids(door, "?channel=user&handle=annika") == []
    refused(door.call("GET", PEOPLE + "?handle=x"), 422, "invalid_field", "channel")
    refused(door.call("GET", PEOPLE + "?channel=phone&handle=x"), 422, "invalid_field", "handle")
    first = door.call("GET", PEOPLE + "?pageSize=2")
    token = first.headers["x-next-page-token"]
    assert [one["id"] for one in first.json["people"]] == [eve, bob]
    assert ids(door, f"?pageSize=2&pageToken={token}") == [ann]
    assert "x-next-page-token" not in door.call("GET", PEOPLE + "?pageSize=3").headers
    refused(door.call("GET", PEOPLE + "?pageToken=W10"), 422, "invalid_field", "pageToken")
    refused(door.call("GET", PEOPLE + "?pageToken=WyJ4Il0"), 422, "invalid_field", "pageToken")


def test_likely_duplicates_are_told_the_surest_first(door: Door) -> None:
    """Lost if red: people who stay two, since no one looks through a thousand of them."""
    by_phone = make(door, name="Ann", handles=[NUMBER])
    by_chat = make(door, handles=[{"channel": "whatsapp", "handle": "6281234567890"}])
    by_user = make(door, handles=[{"channel": "user", "handle": "Ann@Example.com"}])
    by_mail = make(
        door, name="Someone", handles=[{"channel": "email", "handle": "ann@example.com"}]
    )
    namesake = make(door, name=" ANN ")
    make(door, name="Nobody else")
    told = door.call("GET", PEOPLE + "/duplicates").json["duplicates"]
    assert [(one["reason"], one["value"]) for one in told] == [
        ("phone", "+6281234567890"),
        ("email", "ann@example.com"),
        ("name", "ann"),
    ]
    assert [one["people"] for one in told] == [
        [by_phone, by_chat],
        [by_user, by_mail],
        [by_phone, namesake],
    ]
    for pair in told:
        both = {"from": pair["people"][0]["id"], "into": pair["people"][1]["id"]}
        assert door.call("POST", PEOPLE + "/merge", both).status == 200
    assert door.call("GET", PEOPLE + "/duplicates").json == {"duplicates": []}


def test_list_of_duplicates_is_bounded(door: Door, stack: Stack) -> None:
    """Lost if red: an answer without end for whoever calls every customer `Guest`."""
    insert = (
        "INSERT INTO pal.people (id, tenant_id, name, name_key)"
        " SELECT 'per_' || n, %s, 'G', 'g' || n %% 60 FROM generate_series(1, 900) n"
    )
    stack.database.rows(insert, stack.tenant)
    told = door.call("GET", PEOPLE + "/duplicates").json["duplicates"]
    assert [len(one["people"]) for one in told] == [10] * 50


def test_handle_that_is_taken_is_refused_by_name(door: Door) -> None:
    """Lost if red: a number that goes from one person to another without a word."""
    ann = make(door, handles=[NUMBER])
    taken = {"channel": "phone", "handle": "+6281234567890"}
    free = {"channel": "user", "handle": "ben"}
    reply = door.call("POST", PEOPLE, {"name": "Ben", "handles": [free, taken]})
    body = refused(reply, 409, "handle_taken", "handles.1")
    assert "+6281234567890" in body["error"]
    assert body["details"] == [{"field": "handles.1", "reason": f"belongs to {ann['id']}"}]
    ben = make(door, handles=[free, {**free, "handle": " ben "}])
    assert len(ben["handles"]) == 1
    reply = door.call("POST", f"{PEOPLE}/{ben['id']}/handles", taken)
    refused(reply, 409, "handle_taken", "handle")
    assert door.call("GET", f"{PEOPLE}/{ann['id']}").json == ann
    assert ids(door, "") == [ben["id"], ann["id"]]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        pytest.param(PEOPLE, {}, "handles", id="nobody"),
        pytest.param(PEOPLE, {"name": ""}, "name", id="empty-name"),
        pytest.param(PEOPLE, {"name": "x" * 201}, "name", id="long-name"),
        pytest.param(PEOPLE, {"name": "\ud800"}, "name", id="surrogate"),
        pytest.param(PEOPLE, {"handles": [NUMBER] * 51}, "handles", id="many-handles"),
        pytest.param(
            PEOPLE,
            {"handles": [NUMBER, {"channel": "phone", "handle": "0812"}]},
            "handles.1.handle",
            id="no-number",
        ),
        pytest.param(
            PEOPLE, {"handles": [{"channel": "user"}]}, "handles.0.handle", id="no-handle"
        ),
        pytest.param(PEOPLE + "/merge", {"from": "per_x"}, "into", id="into-nobody"),
        pytest.param(
            PEOPLE + "/merge", {"from": "per_x", "into": "per_x"}, "into", id="into-oneself"
        ),
        pytest.param(EVENTS, {}, "events", id="no-events"),
        pytest.param(EVENTS, {"events": [EVENT] * 501}, "events", id="many-events"),
        pytest.param(EVENTS, {"events": [EVENT, 1]}, "events.1", id="no-object"),
        *(
            pytest.param(
                EVENTS, {"events": [EVENT, {**EVENT, **wrong}]}, f"events.1.{field}", id=name
            )
            for name, field, wrong in (
                ("no-content", "content", {"content": ""}),
                ("long-content", "content", {"content": "x" * 200_001}),
                ("nul", "content", {"content": "a\x00"}),
                ("no-channel", "channel", {"channel": ""}),
                ("no-time", "occurredAt", {"occurredAt": "2026-02-30T00:00:00Z"}),
                ("date", "occurredAt", {"occurredAt": "2026-02-03"}),
                ("no-offset", "occurredAt", {"occurredAt": "2026-02-03T00:00:00"}),
                ("number", "occurredAt", {"occurredAt": 1767225600}),
                ("year-1", "occurredAt", {"occurredAt": "0001-01-01T00:00:00Z"}),
                ("year-9999", "occurredAt", {"occurredAt": "9999-12-31T23:59:59-12:00"}),
                ("direction", "direction", {"direction": "up"}),
                ("long-id", "externalId", {"externalId": "x" * 1_001}),
                ("empty-id", "externalId", {"externalId": ""}),
                ("metadata", "metadata", {"metadata": []}),
                ("unknown", "extra", {"extra": 1}),
                ("blank-person", "person.handle", {"person": {"channel": "user", "handle": " "}}),
                ("bad-number", "person.handle", {"person": {"channel": "sms", "handle": "911"}}),
            )
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(path: str, body: Any, field: str, stack: Stack) -> None:
    """Lost if red: the one event of five hundred that a caller has to mend."""
    refused(stack.http().call("POST", path, body), 422, "invalid_field", field)
    for table in ("people", "memory_events"):
        assert stack.database.one(f"SELECT count(*) FROM pal.{table}") == 0  # type: ignore[arg-type]


@pytest.mark.parametrize("person", ["per_00000000000000000000000000", "sess_x", "x%00", "%FF"])
def test_unknown_person_is_a_404(person: str, door: Door) -> None:
    """Lost if red: a 500 for an id that was cut off."""
    refused(door.call("GET", f"{PEOPLE}/{person}"), 404, "not_found")
    body = {"channel": "user", "handle": "x"}
    refused(door.call("POST", f"{PEOPLE}/{person}/handles", body), 404, "not_found")
    known = make(door, name="Ann")["id"]
    refused(door.call("POST", PEOPLE + "/merge", {"from": known, "into": person}), 404, "not_found")
    assert ids(door, "") == [known]


def test_calls_about_people_can_be_made_again(door: Door) -> None:
    """Lost if red: a person who is there twice, after an answer that got lost."""
    once = {"Idempotency-Key": "k"}
    first = door.call("POST", PEOPLE, {"name": "Ann"}, headers=once)
    again = door.call("POST", PEOPLE, {"name": "Ann"}, headers=once)
    assert (again.status, again.json) == (201, first.json)
    assert again.headers["idempotent-replayed"] == "true"
    other = make(door, name="Ann")
    merge = {"from": first.json["id"], "into": other["id"]}
    merged = door.call("POST", PEOPLE + "/merge", merge, headers=once)
    assert door.call("POST", PEOPLE + "/merge", merge, headers=once).json == merged.json
    url, body = f"{PEOPLE}/{other['id']}/handles", {"channel": "user", "handle": "ann"}
    added = door.call("POST", url, body, headers=once)
    assert door.call("POST", url, body, headers=once).json == added.json
    assert len(ids(door, "")) == 1
