"""Tool calls on the OpenAI wire: as servers really send them, one call is one call."""

import json
from typing import Any

import pytest

from chalicelib.providers.base import Finished, ToolCall
from chalicelib.providers.openai_reader import AnswerReader

Fragment = dict[str, Any]


def part(arguments: object = None, **fields: object) -> Fragment:
    """One fragment; `name` goes where names go."""
    function = {"name": fields.pop("name")} if "name" in fields else {}
    if arguments is not None:
        function["arguments"] = arguments
    return {**fields, "function": function}


def streamed(*fragments: Fragment, reason: str = "tool_calls") -> Finished:
    """The end of a stream of these fragments, each in a chunk, then all in one."""
    apart = [{"choices": [{"index": 0, "delta": {"tool_calls": [one]}}]} for one in fragments]
    at_once = [{"choices": [{"index": 0, "delta": {"tool_calls": list(fragments)}}]}]
    end = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    ends = []
    for chunks in (apart, at_once):
        reader = AnswerReader(provider="openai", model="m")
        data = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in [*chunks, end])
        assert list(reader.feed(data)) == []
        text, finished = reader.finish()
        assert text == ""
        ends.append(finished)
    assert ends[0] == ends[1]
    return ends[0]


def whole(*calls: Fragment) -> Finished:
    """The end of an answer that came as one object with these calls."""
    message = {"role": "assistant", "content": None, "tool_calls": list(calls)}
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}
    return AnswerReader(provider="openai", model="m").whole(json.dumps(answer).encode())[1]


def shown(end: Finished) -> list[tuple[str, str, str]]:
    return [(call.id, call.name, call.arguments) for call in end.tool_calls]


TASKS = [('{"title":"%s"}' % title) for title in ("one", "two", "three")]  # noqa: UP031
ADDED = [(f"c{n}", "add_task", task) for n, task in enumerate(TASKS, 1)]
NAMELESS = [("", name, task) for _, name, task in ADDED]


@pytest.mark.parametrize(
    ("fragments", "calls"),
    [
        pytest.param(
            [part(task, index=0, id=id, name=name) for id, name, task in ADDED],
            ADDED,
            id="whole-each-and-all-of-index-0",
        ),
        pytest.param(
            [
                part("", index=0, id="c1", name="add_task"),
                part("", index=1, id="c2", name="add_task"),
                part(TASKS[0][:5], index=0),
                part(TASKS[1][:9], index=1),
                part(TASKS[0][5:], index=0),
                part(TASKS[1][9:], index=1),
            ],
            ADDED[:2],
            id="interleaved-with-the-id-in-the-first-only",
        ),
        pytest.param(
            [part(task, id=id, name=name) for id, name, task in ADDED],
            ADDED,
            id="whole-each-without-an-index",
        ),
        pytest.param(
            [
                part("", id="c1", name="add_task"),
                part(TASKS[0][:5]),
                part(TASKS[0][5:]),
                part("", id="c2", name="add_task"),
                part(TASKS[1]),
            ],
            ADDED[:2],
            id="in-pieces-without-an-index",
        ),
        pytest.param(
            [
                part("", id="c1", name="add_task"),
                part("", id="c2", name="add_task"),
                part(TASKS[0][:5], id="c1"),
                part(TASKS[1], id="c2"),
                part(TASKS[0][5:], id="c1"),
            ],
            ADDED[:2],
            id="interleaved-by-id-without-an-index",
        ),
        pytest.param(
            [
                part(TASKS[0][:5], index=0, id="c1", name="add_task"),
                part(TASKS[0][5:], index=0),
                part(TASKS[1], index=0, id="c2", name="add_task"),
            ],
            ADDED[:2],
            id="in-pieces-then-another-of-index-0",
        ),
        pytest.param(
            [
                part(TASKS[0][:5], index=0, id="c1", name="add_task"),
                part(TASKS[1], index=0, id="c2", name="add_task"),
                part(TASKS[0][5:], index=0, id="c1"),
            ],
            ADDED[:2],
            id="another-of-index-0-between-the-pieces",
        ),
        pytest.param(
            [part(task, index=0, name=name) for _, name, task in ADDED],
            NAMELESS,
            id="whole-each-of-index-0-and-no-id",
        ),
        pytest.param(
            [part(task, id="", name=name) for _, name, task in ADDED],
            NAMELESS,
            id="whole-each-with-neither-index-nor-id",
        ),
        pytest.param(
            [part(task, index=0, id="c", name=name) for _, name, task in ADDED],
            [("c", name, task) for _, name, task in ADDED],
            id="whole-each-of-one-id-and-index",
        ),
        pytest.param(
            [part(task, index=n, id="c", name=name) for n, (_, name, task) in enumerate(ADDED)],
            [("c", name, task) for _, name, task in ADDED],
            id="one-id-for-all",
        ),
        pytest.param(
            [
                part(piece, index=0, id="c1", name="add_task")
                for piece in ("", TASKS[0][:5], TASKS[0][5:])
            ],
            ADDED[:1],
            id="name-and-id-said-each-time",
        ),
        pytest.param(
            [
                part("", index=0, name="add_task"),
                *(part(piece, index=0, name="add_task") for piece in TASKS[0]),
            ],
            NAMELESS[:1],
            id="name-said-each-time-and-no-id",
        ),
        pytest.param(
            [
                part("", index=0, id="c1", name="add_task"),
                part(TASKS[0][:5], index=0, id="x2"),
                part(TASKS[0][5:], index=0, id="x3"),
            ],
            ADDED[:1],
            id="a-new-id-with-each-piece",
        ),
        pytest.param(
            [part("", index=0, id="c1"), part(TASKS[0], index=0, name="add_task")],
            ADDED[:1],
            id="name-after-the-id",
        ),
        pytest.param(
            [part("", id="c1", name="add_task"), part(TASKS[0], index=0)],
            ADDED[:1],
            id="index-from-the-second-piece-on",
        ),
        pytest.param(
            [part(TASKS[0][:5], index=0, id="c1", name="add_task"), part(TASKS[0][5:], index=1)],
            ADDED[:1],
            id="an-index-for-each-piece",
        ),
        pytest.param(
            [part(None, index=0, name="now"), part(None, index=0, name="today")],
            [("", "now", "{}"), ("", "today", "{}")],
            id="two-names-without-arguments",
        ),
        pytest.param(
            [
                part(TASKS[0], index=1, id="c1", name="add_task"),
                part(TASKS[1], index=0, id="c2", name="add_task"),
            ],
            ADDED[:2],
            id="indexes-the-wrong-way-round-keep-their-order",
        ),
        pytest.param(
            [part(json.loads(TASKS[0]), index="0", id="c1", name="add_task")],
            ADDED[:1],
            id="arguments-as-an-object",
        ),
        pytest.param(
            [part("{}", index=0, id="c1"), part(TASKS[0], index=1, id="c1", name="add_task")],
            ADDED[:1],
            id="one-that-has-no-name-is-none",
        ),
    ],
)
def test_fragments_become_the_calls_that_were_meant(
    fragments: list[Fragment], calls: list[tuple[str, str, str]]
) -> None:
    """TOL-1. Lost if red: several calls glued into one that no tool takes, or one cut in two."""
    end = streamed(*fragments)
    assert shown(end) == calls
    assert end.reason == "tool_calls"


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        ("", "{}"),
        (None, "{}"),
        ("null", "{}"),
        (" \n", "{}"),
        ("{}", "{}"),
        (' {"a": 1} ', ' {"a": 1} '),
        ('{"a": ', '{"a": '),
        ("[1]", "[1]"),
        ('{"a": "\\ud83d\0"}', '{"a": "\\ud83d\ufffd"}'),
    ],
)
def test_arguments_that_are_empty_mean_none(sent: str | None, kept: str) -> None:
    """TOL-2. Lost if red: tools without parameters; what is broken is the model's to hear of."""
    fragment = part(sent, index=0, id="c1", name="now")
    assert shown(streamed(fragment)) == [("c1", "now", kept)]
    assert shown(whole({**fragment, "type": "function"})) == [("c1", "now", kept)]


def test_character_cut_between_two_fragments_is_whole() -> None:
    """STR-1. Lost if red: emoji in what a tool is told."""
    fragments = ('{"a":"\ud83d', '\ude00"}')
    first, second = (part(one, index=0) for one in fragments)
    end = streamed({**first, "function": {**first["function"], "name": "say"}}, second)
    assert shown(end) == [("", "say", '{"a":"😀"}')]


def test_calls_that_come_whole_are_never_one() -> None:
    """TOL-1. Lost if red: the second of two equal calls."""
    now = {"type": "function", "function": {"name": "now", "arguments": ""}}
    task = {"id": "c1", "function": {"name": "add_task", "arguments": TASKS[0]}}
    assert shown(whole(now, now, task, task)) == [
        ("", "now", "{}"),
        ("", "now", "{}"),
        *([ADDED[0]] * 2),
    ]


def test_calls_count_though_the_server_says_stop() -> None:
    """Lost if red: the tool loop with servers that name the end wrong."""
    fragment = part(TASKS[0], index=0, id="c1", name="add_task")
    assert streamed(fragment, reason="stop") == Finished(
        reason="tool_calls",
        provider="openai",
        model="m",
        tool_calls=(ToolCall(id="c1", name="add_task", arguments=TASKS[0]),),
    )
    assert streamed(fragment, reason="length").reason == "length"


def test_text_beside_calls_is_said() -> None:
    """Lost if red: what a model says before it acts."""
    call = part(TASKS[0], index=0, id="c1", name="add_task")
    chunks = [
        {"choices": [{"index": 0, "delta": {"content": "I will."}}]},
        {"choices": [{"index": 0, "delta": {"content": None, "tool_calls": [call]}}]},
        {"choices": [{"index": 0, "delta": {"content": ""}, "finish_reason": "tool_calls"}]},
    ]
    data = b"".join(b"data: " + json.dumps(one).encode() + b"\n\n" for one in chunks)
    for cut in ([data], [data[n : n + 1] for n in range(len(data))]):
        reader = AnswerReader(provider="openai", model="m")
        assert [delta.text for one in cut for delta in reader.feed(one)] == ["I will."]
        assert shown(reader.finish()[1]) == ADDED[:1]


def test_name_of_a_call_is_no_way_to_fill_a_table() -> None:
    """Lost if red: room, to a model that writes a book where a name belongs."""
    end = streamed(part("{}", index=0, id="\0" + "i" * 5000, name="\0" + "n" * 5000))
    assert shown(end) == [("\ufffd" + "i" * 199, "\ufffd" + "n" * 199, "{}")]


def test_work_grows_with_the_fragments_and_not_with_their_square() -> None:
    """Lost if red: a process, to a server that says its name with each of many pieces.

    Looking at all arguments with each piece would be 150 GB here, and run into the time limit.
    """
    reader = AnswerReader(provider="openai", model="m")
    sent = [part(one, index=0, name="f") for one in ('{"a":"', "x" * 50)]
    first, more = (
        b"data: " + json.dumps({"choices": [{"delta": {"tool_calls": [one]}}]}).encode() + b"\n\n"
        for one in sent
    )
    assert list(reader.feed(first)) == []
    for _ in range(80_000):
        assert list(reader.feed(more)) == []
    reader.done = True
    assert len(reader.finish()[1].tool_calls[0].arguments) == 6 + 4_000_000
