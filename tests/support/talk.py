"""A session's messages as the history holds them: turns of a user, an assistant and its tools."""

from typing import Any

Entry = dict[str, Any]


def said(number: int, text: str, **more: Any) -> Entry:
    """The user's message of a turn."""
    told = {"id": f"msg_u{number}", "role": "user", "content": text, "turnId": f"tur_{number}"}
    return told | {"timestamp": f"2026-03-01T10:{number % 60:02}:00.000000Z"} | more


def replied(number: int, text: str, **more: Any) -> Entry:
    """The reply of a turn."""
    told = {"id": f"msg_a{number}", "role": "assistant", "content": text, "turnId": f"tur_{number}"}
    return told | {"timestamp": f"2026-03-01T10:{number % 60:02}:30.000000Z"} | more


def turn(number: int, asked: str = "", answer: str = "") -> list[Entry]:
    """A question and its answer: two messages."""
    return [
        said(number, asked or f"Question {number}: what of the garden's bed {number}?"),
        replied(number, answer or f"Answer {number}: bed {number} is dug and wants water."),
    ]


def talk(turns: int, first: int = 1) -> list[Entry]:
    """So many turns of two messages each."""
    return [entry for number in range(first, first + turns) for entry in turn(number)]


def called(number: int, *calls: str, **more: Any) -> Entry:
    """A round of a turn that calls a tool, once an id."""
    asked = [{"id": one, "name": "look", "arguments": {"where": one}} for one in calls]
    told = {"role": "assistant", "content": "", "toolCalls": asked, "turnId": f"tur_{number}"}
    return told | more


def result(number: int, call: str, text: str = "It is there.", **more: Any) -> Entry:
    """What came of a call, as a turn heard of it."""
    return {"role": "tool", "toolCallId": call, "content": text, "turnId": f"tur_{number}"} | more


def tool_turn(number: int, text: str = "It is there.") -> list[Entry]:
    """A turn with a call, its result and a reply: two messages of four entries."""
    asked, answer = turn(number)
    return [asked, called(number, f"call_{number}"), result(number, f"call_{number}", text), answer]
