"""Agents with tools, for tests: an HTTP tool of the fake server, and what a turn did with it."""

from typing import Any

from tests.fakes.notes import said
from tests.fakes.tool_server import ToolServer
from tests.support.http import Event, HttpClient

NOTE = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}


def note_tool(server: ToolServer, name: str = "read_note", **more: Any) -> dict[str, Any]:
    """A tool that posts `{"id": …}` to `/<name>` of the server."""
    return {
        "kind": "http",
        "name": name,
        "description": "About a note.",
        "method": "POST",
        "url": server.url(f"/{name}"),
        "parameters": NOTE,
        **more,
    }


def make_agent(http: HttpClient, *tools: dict[str, Any], name: str = "clerk", **more: Any) -> str:
    """Define an agent with these tools: a session with it."""
    made = http.call("POST", "/v1/agents", {"name": name, "tools": list(tools), **more})
    assert made.status == 201, made.body
    return new_session(http, name)


def new_session(http: HttpClient, name: str = "clerk") -> str:
    """A session with this agent."""
    made = http.call("POST", "/v1/sessions", {"agentName": name})
    assert made.status == 201, made.body
    session: str = made.json["id"]
    return session


def turn(http: HttpClient, session: str, content: str, **more: Any) -> list[Event]:
    """Post a message: all events of its turn."""
    return http.stream(
        "POST", f"/v1/sessions/{session}/messages", {"content": content, **more}
    ).rest()


def names(events: list[Event]) -> list[str]:
    """What happened, in order."""
    return [one.name for one in events]


def data_of(events: list[Event], name: str) -> list[dict[str, Any]]:
    """The data of all events of this name."""
    return [one.data for one in events if one.name == name]


def calls_of(http: HttpClient, session: str) -> list[dict[str, Any]]:
    """The tool calls that the session's messages show, in order."""
    messages = http.call("GET", f"/v1/sessions/{session}").json["messages"]
    return [call for one in messages for call in one.get("toolCalls", ())]


def sent(body: dict[str, Any]) -> list[tuple[str, Any]]:
    """(role, what was said or called names) of a request's messages behind the system prompt."""
    told: list[tuple[str, Any]] = []
    for one in body["messages"]:
        if one["role"] == "system":
            continue
        asked = [call["function"]["name"] for call in one.get("tool_calls") or ()]
        content = said(one["content"]) if isinstance(one["content"], str) else one["content"]
        told.append((one["role"], asked or content))
    return told
