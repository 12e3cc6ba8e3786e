"""What a test asks of answers again and again."""

from typing import Any

from tests.support.doors import Door
from tests.support.http import Reply

_INSIDES = ("Traceback", 'File "', "psycopg", "pydantic", "chalicelib", "SELECT ", "Error(")


def new_session(door: Door, **more: object) -> str:
    """A fresh session's id."""
    reply = door.call("POST", "/v1/sessions", {"agentName": "guide", **more})
    assert reply.status == 201, reply.body
    return str(reply.json["id"])


def refused(reply: Reply, status: int, code: str = "", field: str = "") -> dict[str, Any]:
    """The body of an error, once it has the contract's shape, this status, code and field."""
    text = reply.body.decode()
    assert reply.status == status, (reply.status, text[:500])
    assert reply.headers["content-type"] == "application/json"
    body: dict[str, Any] = reply.json
    assert {"error", "code", "requestId"} <= set(body) <= {"error", "code", "requestId", "details"}
    assert body["requestId"] == reply.headers["x-request-id"] != ""
    assert body["error"].strip() == body["error"] != ""
    assert not [word for word in _INSIDES if word in text], text
    if code:
        assert body["code"] == code, text
    if field:
        assert field in [one["field"] for one in body["details"]], text
        assert all(one["reason"] for one in body["details"])
    return body
