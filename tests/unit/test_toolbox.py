"""What a turn's calls meet: odd arguments, tools that break or hang, results without measure."""

import asyncio
import json
import logging
import re
from datetime import UTC, datetime
from typing import Any, TypeVar

import pytest
from pydantic import TypeAdapter

from chalicelib.config import Settings
from chalicelib.outbound import Guard
from chalicelib.providers.base import ToolCall, ToolSpec
from chalicelib.tools.base import Run, Tool, ToolContext, ToolFailed, ToolOutcome
from chalicelib.tools.definitions import Definition, ToolDefinition
from chalicelib.tools.excerpt import excerpt
from chalicelib.tools.toolbox import KINDS, Toolbox, ToolDeps, open_toolbox

T = TypeVar("T")

DEFINITION: TypeAdapter[Definition] = TypeAdapter(ToolDefinition)
CONTEXT = ToolContext(
    tenant_id="ten_1",
    session_id="sess_1",
    turn_id="tur_1",
    call_id="call_1",
    agent_name="assistant",
    user_id=None,
    group_id=None,
    now=datetime(2026, 3, 29, 0, 59, 59, 123456, tzinfo=UTC),
)
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 80},
        "days": {"type": "integer", "minimum": 1},
        "stops": {"type": "array", "items": {"type": "object", "required": ["name"]}},
    },
    "required": ["city"],
}
HTTP = {"kind": "http", "name": "weather", "method": "GET", "url": "https://api.example.com/"}
CLOCK = {"kind": "builtin", "name": "current_time"}
SECRETS = {"key": 's3cr3t/va"lue', "bearer": "Bearer abcdefgh12345", "short": "abc"}


async def secret(tenant_id: str, name: str) -> str | None:
    """The tenant's secrets of these tests."""
    return SECRETS.get(name) if tenant_id == "ten_1" else None


def deps(**changes: Any) -> ToolDeps:
    """What tools are made with, with these settings changed."""
    return ToolDeps(settings=Settings(**changes), guard=Guard([]), secret=secret)


def tool(run: Run, **changes: Any) -> Tool:
    """A tool `weather` that does this."""
    spec = ToolSpec(name="weather", description="", parameters=changes.pop("parameters", SCHEMA))
    return Tool(spec=spec, run=run, **changes)


async def echo(arguments: dict[str, Any], context: ToolContext) -> str:
    """What a call came with."""
    return json.dumps(arguments, ensure_ascii=False)


def says(text: str) -> Run:
    """A tool that answers this."""

    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        return text

    return run


def fails(error: BaseException) -> Run:
    """A tool that raises this."""

    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        raise error

    return run


def box(made: Tool, **changes: Any) -> Toolbox:
    """A toolbox of one tool."""
    return Toolbox({made.spec.name: made}, deps=deps(**changes))


def wish(arguments: str = '{"city": "Rome"}', name: str = "weather") -> ToolCall:
    """A model's call."""
    return ToolCall(id="call_1", name=name, arguments=arguments)


def call(made: Tool, arguments: str = '{"city": "Rome"}', **changes: Any) -> ToolOutcome:
    """What becomes of a call of this tool."""
    return asyncio.run(box(made, **changes).call(wish(arguments), CONTEXT))


def opened(
    *entries: dict[str, Any], then: Any = None, read_only: bool = False, **changes: Any
) -> Any:
    """The toolbox of these entries, or what `then` makes of it while it is open."""

    async def run() -> Any:
        definitions = [DEFINITION.validate_python(entry) for entry in entries]
        made = await open_toolbox(
            definitions, tenant_id="ten_1", read_only=read_only, deps=deps(**changes)
        )
        try:
            return await then(made) if then else made
        finally:
            await made.close()

    return asyncio.run(run())


@pytest.mark.parametrize("arguments", ["", "  \n", "null", "{}", " { } "])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    """Lost if red: tools without arguments, which models call in all of these ways."""
    outcome = call(tool(echo, parameters={"type": "object"}), arguments)
    assert outcome == ToolOutcome(text="{}")


def test_arguments_reach_the_tool_as_they_were_sent() -> None:
    """Lost if red: what the model asked for."""
    sent = {"city": "Zürich 🇨🇭", "days": 2, "stops": [{"name": "x", "far": 1.5}], "more": None}
    assert json.loads(call(tool(echo), json.dumps(sent)).text) == sent


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        pytest.param('{"city": "Rome"', "no JSON", id="cut"),
        pytest.param('{"city": "Rome"} {}', "character 18", id="two-objects"),
        pytest.param("Rome", "no JSON", id="bare-text"),
        pytest.param("[1]", "must be a JSON object", id="list"),
        pytest.param('"{}"', "must be a JSON object", id="text-of-json"),
        pytest.param("0", "must be a JSON object", id="number"),
        pytest.param("{}", "'city' is a required property", id="missing"),
        pytest.param('{"city": 1}', "city: 1 is not of type 'string'", id="type"),
        pytest.param('{"city": "x", "days": 0}', "days: 0 is less than", id="minimum"),
        pytest.param(
            '{"city": "x", "stops": [{"name": 1}, {}]}', "stops[1]: 'name'", id="inner-place"
        ),
        pytest.param('{"city": "\\u0000"}', "NUL", id="nul"),
        pytest.param('{"city": "\\ud83d"}', "surrogate", id="half-a-character"),
        pytest.param('{"\\udc00": 1, "city": "x"}', "surrogate", id="half-a-name"),
        pytest.param('{"city": "x", "days": NaN}', "NaN", id="nan"),
        pytest.param('{"city": "x", "days": -Infinity}', "-Infinity", id="infinity"),
        pytest.param('{"city": "x", "days": 1e999}', "too large", id="too-large-a-float"),
        pytest.param('{"city": "x", "days": 1' + "0" * 5000 + "}", "too large", id="digits"),
        pytest.param('{"city": ' + "[" * 20_000, "nested too deeply", id="deep"),
        pytest.param('{"city": "' + "x" * 100_000 + '"}', "100000", id="large"),
    ],
)
def test_arguments_that_do_not_fit_are_told_to_the_model(arguments: str, told: str) -> None:
    """Lost if red: a call that the model could have put right, or a turn that broke over it."""
    made = box(tool(fails(AssertionError("was called"))))
    problem = made.problem(wish(arguments))
    assert problem is not None
    assert told in problem
    assert len(problem) < 2000
    outcome = asyncio.run(made.call(wish(arguments), CONTEXT))
    assert outcome == ToolOutcome(text=problem, is_error=True)


def test_a_call_that_fits_has_no_problem() -> None:
    """Lost if red: every approval, which is asked for only when a call could be made."""
    assert box(tool(echo)).problem(wish()) is None


@pytest.mark.parametrize("name", ["Weather", "", "weather\ud83d", "x" * 5000])
def test_an_unknown_tool_is_told_which_there_are(name: str) -> None:
    """Lost if red: a model that keeps calling what is not there."""
    made = box(tool(echo))
    outcome = asyncio.run(made.call(wish(name=name), CONTEXT))
    assert outcome.is_error
    assert "There are: weather" in outcome.text
    assert len(outcome.text) < 500
    assert outcome.text == made.problem(wish(name=name))
    assert outcome.text.encode()


@pytest.mark.parametrize(
    ("schema", "arguments", "fits"),
    [
        pytest.param({"pattern": "^(a+)+$"}, "a" * 90_000 + "!", False, id="nested-repeats"),
        pytest.param({"pattern": "(?=x)a"}, "b", True, id="look-around-is-not-run"),
        pytest.param({"pattern": "["}, "b", True, id="no-pattern-at-all"),
        pytest.param({"pattern": "b$"}, "ab", True, id="found-anywhere"),
        pytest.param({"format": "email"}, "no mail", True, id="formats-are-not-checked"),
        pytest.param({"uniqueItems": True}, [{}] * 20_000, False, id="equal-items"),
        pytest.param({"uniqueItems": True}, [{"a": n} for n in range(5000)], True, id="unequal"),
        pytest.param({"enum": list(range(9000))}, 9000, False, id="long-enum"),
        pytest.param(
            {"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False},
            {"a" * 40 + "!": 1},
            True,
            id="patterns-of-names-are-not-run",
        ),
        pytest.param({"pattern": "(?=x)", "maxLength": 2}, "xxx", False, id="the-rest-is-run"),
        pytest.param({"$ref": "https://x.example/"}, 1, True, id="reference-elsewhere"),
        pytest.param({"type": "odd"}, 1, True, id="no-schema"),
        pytest.param(
            {"$schema": "http://json-schema.org/draft-07/schema#", "pattern": "^(a+)+$"},
            "a" * 40 + "!",
            False,
            id="another-dialect",
        ),
    ],
)
def test_no_schema_holds_up_the_process(schema: Any, arguments: Any, fits: bool) -> None:
    """Lost if red: everyone's turns, held up by one agent's schema."""
    made = box(tool(echo, parameters={"type": "object", "properties": {"a": schema}}))
    # what takes for ever here, the suite ends
    problem = made.problem(wish(json.dumps({"a": arguments})))
    assert problem is None or "do not fit" in problem
    assert (problem is None) == fits


@pytest.mark.parametrize(
    ("schema", "arguments"),
    [
        pytest.param({"anyOf": [{"type": "null"}] * 900}, ["x" * 90] * 900, id="wide"),
        pytest.param({"$ref": "#/$defs/d0"}, 1, id="references-that-double"),
        pytest.param({"$ref": "#/$defs/loop"}, 1, id="references-in-a-ring"),
    ],
)
def test_a_check_that_would_not_end_is_given_up(schema: Any, arguments: Any) -> None:
    """Lost if red: the same, and the memory of the process with it."""
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    whole = {
        "type": "object",
        "properties": {"a": schema},
        "$defs": {**doubling, "d40": {"type": "integer"}, "loop": {"$ref": "#/$defs/loop"}},
    }
    problem = box(tool(echo, parameters=whole)).problem(wish(json.dumps({"a": arguments})))
    assert problem is not None
    assert "to be checked" in problem


@pytest.mark.parametrize(
    ("error", "told"),
    [
        pytest.param(ToolFailed("no such city"), "no such city", id="its-own-words"),
        pytest.param(ValueError("postgres://u:p@h"), "weather failed.", id="exception"),
        pytest.param(TimeoutError(), "weather failed.", id="a-timeout-that-is-not-ours"),
        pytest.param(
            ExceptionGroup("g", [OSError("10.0.0.1")]), "weather failed.", id="exception-group"
        ),
        pytest.param(RecursionError("too deep"), "weather failed.", id="recursion"),
    ],
)
def test_a_tool_that_fails_is_an_error_for_the_model(
    error: Exception, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: a turn lost to a tool, or our internals in a model's hands and in the log."""
    assert call(tool(fails(error))) == ToolOutcome(text=told, is_error=True)
    broke = [one for one in caplog.records if getattr(one, "action", "") == "tool_broke"]
    if isinstance(error, ToolFailed):
        assert broke == []
    else:
        (record,) = broke
        assert (record.tool, record.error) == ("weather", type(error).__name__)  # type: ignore[attr-defined]
        assert str(error) not in caplog.text or not str(error)


def test_a_tool_that_hangs_is_given_up() -> None:
    """Lost if red: a turn that waits for ever, or one that believes that nothing happened."""

    async def hang(arguments: dict[str, Any], context: ToolContext) -> str:
        await asyncio.Event().wait()
        return ""

    outcome = call(tool(hang, timeout=0.05))
    assert outcome.is_error
    assert outcome.text == "weather timed out after 0.05 s; whether it had an effect is unknown."


def test_cancelling_a_turn_cancels_its_calls() -> None:
    """Lost if red: cancel and shutdown, which wait for what a tool still does."""
    started, ended = asyncio.Event(), asyncio.Event()

    async def hang(arguments: dict[str, Any], context: ToolContext) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    async def run() -> None:
        calling = asyncio.create_task(box(tool(hang)).call(wish(), CONTEXT))
        await started.wait()
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        assert ended.is_set()

    asyncio.run(run())


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("word " * 600_000, id="3-MB"),
        pytest.param("👩‍👩‍👧‍👦🇨🇭👍🏽" * 9_000, id="400-KB-of-emoji"),
        pytest.param("x" * 1_000_000, id="one-line-without-spaces"),
        pytest.param("e\u0301" * 100_000, id="letters-with-accents"),
        pytest.param("\u0301" * 100_000, id="accents-without-letters"),
        pytest.param("🇨" * 50_001, id="flags"),
        pytest.param("a\r\n" * 50_000, id="lines"),
    ],
)
def test_a_giant_result_is_cut_for_the_model_and_kept_outside(text: str) -> None:
    """Lost if red: a session that one result fills, so that each of its turns fails."""
    outcome = call(tool(says(text)), tool_result_limit=16_000)
    assert len(outcome.text) <= 16_000
    assert len(outcome.text) > 15_800
    assert outcome.whole == text
    head, note, tail = outcome.text.split("\n\n", 2)[0], "left out here", outcome.text[-100:]
    assert text.startswith(head)
    assert text.endswith(tail)
    assert note in outcome.text
    assert str(len(text)) in outcome.text
    assert not outcome.is_error


def test_the_note_tells_how_much_is_missing() -> None:
    """Lost if red: a model that takes an excerpt for the whole, or for a guess of it."""
    text = "".join(chr(ord("a") + n % 26) for n in range(5000))
    cut = excerpt(text, limit=1000)
    head, note, tail = cut.split("\n\n")
    assert len(cut) <= 1000
    assert text == head + text[len(head) : len(text) - len(tail)] + tail
    assert note == f"[… {5000 - len(head) - len(tail)} of 5000 characters left out here …]"
    assert len(head) > len(tail) > 100


@pytest.mark.parametrize("unit", ["👩‍👩‍👧‍👦", "🇨🇭", "👍🏽", "e\u0301\u0323", "\r\n", "क्षि", "🏴󠁧󠁢󠁳󠁣󠁴󠁿"])
def test_a_cut_splits_nothing_that_is_seen_as_one(unit: str) -> None:
    """Lost if red: a family of emoji as a couple, a flag as a letter, an e without its accent."""
    for shift in range(len(unit)):
        cut = excerpt("ab"[: shift % 3] + unit * 3000, limit=1000 + shift)
        head, tail = re.split(r"\n\n\[.*\]\n\n", cut)
        assert head.lstrip("ab") == unit * (len(head.lstrip("ab")) // len(unit))
        assert tail == unit * (len(tail) // len(unit))


def test_a_result_that_fits_is_left_alone() -> None:
    """Lost if red: a stored copy of every short result."""
    assert call(tool(says("x" * 1000)), tool_result_limit=1000) == ToolOutcome(text="x" * 1000)


def test_what_is_kept_of_a_result_is_bounded() -> None:
    """Lost if red: a row of any size, written by anyone's server."""
    outcome = call(tool(says("ü" * (3 << 20))))
    assert outcome.whole is not None
    assert len(outcome.whole.encode()) == 4 << 20


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("a\x00b", "a\ufffdb"),
        ("a\ud83d", "a\ufffd"),
        ("\ud83d\ude00", "😀"),
        ("\udc00\ud83d", "\ufffd\ufffd"),
    ],
)
def test_a_result_can_be_stored(text: str, kept: str) -> None:
    """Lost if red: a turn that fails as its result is written, each time it is tried."""
    assert call(tool(says(text))).text == kept
    assert call(tool(fails(ToolFailed(text)))).text == kept


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        pytest.param('key s3cr3t/va"lue.', "key ***.", id="as-it-is"),
        pytest.param('{"k": "s3cr3t/va\\"lue"}', '{"k": "***"}', id="in-json"),
        pytest.param('{"k": "s3cr3t\\/va\\"lue"}', '{"k": "***"}', id="in-json-with-slashes"),
        pytest.param("?k=s3cr3t%2Fva%22lue&", "?k=***&", id="in-a-url"),
        pytest.param("<b>s3cr3t/va&quot;lue</b>", "<b>***</b>", id="in-html"),
        pytest.param("Authorization: Bearer abcdefgh12345", "Authorization: ***", id="whole"),
        pytest.param("token abcdefgh12345", "token ***", id="its-token-alone"),
        pytest.param("abcd", "abcd", id="too-short-to-hide"),
    ],
)
def test_a_secret_that_comes_back_is_masked(text: str, masked: str) -> None:
    """Lost if red: a tenant's key in events, messages and the model's next request."""

    async def run() -> list[ToolOutcome]:
        made = await open_toolbox([], tenant_id="ten_1", read_only=False, deps=deps())
        inner = made._deps
        for name in SECRETS:
            await inner.secret("ten_1", name)
        made = Toolbox({"weather": tool(says(text))}, deps=inner)
        said = await made.call(wish(), CONTEXT)
        made = Toolbox({"weather": tool(fails(ToolFailed(text)))}, deps=inner)
        return [said, await made.call(wish(), CONTEXT)]

    assert [outcome.text for outcome in asyncio.run(run())] == [masked, masked]


def test_a_cut_does_not_leave_the_half_of_a_secret() -> None:
    """Lost if red: most of a key, where an answer ended within it."""

    async def run() -> str:
        made = await open_toolbox([], tenant_id="ten_1", read_only=False, deps=deps())
        await made._deps.secret("ten_1", "key")
        return made._deps.masking.mask("and s3cr3t/v", cut=True)

    assert asyncio.run(run()) == "and ***"


def test_tools_are_offered_in_the_order_of_the_agent() -> None:
    """Lost if red: a prompt that differs from turn to turn, and the vendor's cache with it."""
    made: Toolbox = opened(HTTP, CLOCK, HTTP | {"name": "a"})
    assert [spec.name for spec in made.specs] == ["weather", "current_time", "a"]
    assert list(made.tools) == ["weather", "current_time", "a"]


def test_an_entry_says_what_its_tool_is() -> None:
    """Lost if red: approvals, timeouts and read-only turns."""
    asks = HTTP | {"approval": "always", "readOnly": True, "idempotent": True, "timeout": 7}
    made = opened(asks, HTTP | {"name": "plain"}, tool_timeout=11.0).tools
    weather, plain = made["weather"], made["plain"]
    assert (weather.approval, weather.read_only, weather.idempotent) == ("always", True, True)
    assert weather.timeout == 7
    assert (plain.approval, plain.read_only, plain.idempotent) == ("never", False, False)
    assert plain.timeout == 11


def test_a_read_only_turn_is_offered_what_changes_nothing() -> None:
    """Lost if red: a turn that may only look, and acts."""
    made: Toolbox = opened(HTTP, HTTP | {"name": "look", "readOnly": True}, CLOCK, read_only=True)
    assert list(made.tools) == ["look", "current_time"]
    assert made.problem(wish()) == (
        "There is no tool named 'weather'. There are: look, current_time."
    )


def test_a_builtin_is_what_it_is_by_nature() -> None:
    """Lost if red: a clock that read-only turns cannot read, for want of a word in its entry."""
    assert opened(CLOCK | {"readOnly": False}).tools["current_time"].read_only


def test_of_two_tools_with_one_name_the_first_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Lost if red: a server that takes over another tool by offering one of its name."""
    made: Toolbox = opened(HTTP | {"description": "first"}, HTTP | {"description": "second"})
    assert [spec.description for spec in made.specs] == ["first"]
    (record,) = [one for one in caplog.records if getattr(one, "action", "") == "tool_name_taken"]
    assert (record.levelno, record.tool) == (logging.WARNING, "weather")  # type: ignore[attr-defined]


@pytest.mark.parametrize("trouble", ["raises", "hangs"])
def test_a_source_that_cannot_be_opened_is_left_out(
    trouble: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost if red: every turn of an agent while one of its servers is down."""

    async def factory(definition: Any, /, *, tenant_id: str, deps: ToolDeps) -> list[Tool]:
        if trouble == "hangs":
            await asyncio.Event().wait()
        raise ConnectionError("secret detail")

    monkeypatch.setitem(KINDS, "mcp", factory)
    notes = {"kind": "mcp", "name": "notes", "url": "https://mcp.example.com/", "timeout": 0.05}
    made: Toolbox = opened(notes, CLOCK)
    assert list(made.tools) == ["current_time"]
    (record,) = [
        one for one in caplog.records if getattr(one, "action", "") == "tool_source_left_out"
    ]
    assert (record.levelno, record.entry) == (logging.WARNING, "notes")  # type: ignore[attr-defined]
    assert "secret detail" not in caplog.text


def test_what_tools_hold_open_is_closed_with_the_toolbox(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: connections that pile up, turn after turn; a turn that fails at its end."""
    closed: list[str] = []

    async def factory(definition: Any, /, *, tenant_id: str, deps: ToolDeps) -> list[Tool]:
        deps.closing.callback(closed.append, definition.name)
        if definition.name == "bad":
            deps.closing.callback(lambda: 1 / 0)
        return []

    monkeypatch.setitem(KINDS, "mcp", factory)
    server = {"kind": "mcp", "name": "good", "url": "https://mcp.example.com/"}
    opened(server, server | {"name": "bad"})
    assert sorted(closed) == ["bad", "good"]
    assert [getattr(one, "action", "") for one in caplog.records] == ["tool_not_closed"]


def test_a_turn_that_is_cancelled_while_it_opens_leaves_nothing_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lost if red: a connection a cancelled turn."""
    closed: list[bool] = []
    waiting = asyncio.Event()

    async def factory(definition: Any, /, *, tenant_id: str, deps: ToolDeps) -> list[Tool]:
        deps.closing.callback(closed.append, True)
        waiting.set()
        await asyncio.Event().wait()
        return []

    monkeypatch.setitem(KINDS, "mcp", factory)
    notes = DEFINITION.validate_python(
        {"kind": "mcp", "name": "notes", "url": "https://mcp.example.com/"}
    )

    async def run() -> None:
        opening = asyncio.create_task(
            open_toolbox([notes], tenant_id="ten_1", read_only=False, deps=deps())
        )
        await waiting.wait()
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening

    asyncio.run(run())
    assert closed == [True]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ("", "2026-03-29T00:59:59+00:00 (Sunday), time zone UTC"),
        ('{"timezone": "Europe/Berlin"}', "2026-03-29T01:59:59+01:00 (Sunday)"),
        ('{"timezone": "Asia/Kathmandu"}', "2026-03-29T06:44:59+05:45 (Sunday)"),
        ('{"timezone": "America/Los_Angeles"}', "2026-03-28T17:59:59-07:00 (Saturday)"),
    ],
)
def test_the_clock_tells_when_the_message_came(arguments: str, told: str) -> None:
    """Lost if red: what day it is where the user is; a turn that is run again and asks anew."""

    async def then(made: Toolbox) -> ToolOutcome:
        return await made.call(wish(arguments, "current_time"), CONTEXT)

    outcome: ToolOutcome = opened(CLOCK, then=then)
    assert told in outcome.text
    assert not outcome.is_error


@pytest.mark.parametrize("zone", ["Europe/Bonn", "", "../passwd", "/etc/passwd", "Europe", "CEST "])
def test_an_unknown_time_zone_is_named(zone: str) -> None:
    """Lost if red: a model that cannot see what it got wrong, or a file read by its name."""

    async def then(made: Toolbox) -> ToolOutcome:
        return await made.call(wish(json.dumps({"timezone": zone}), "current_time"), CONTEXT)

    outcome: ToolOutcome = opened(CLOCK, then=then)
    assert outcome.is_error
    assert repr(zone) in outcome.text


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("remember", '{"topic": "home", "content": "Lives in Oslo."}'),
        ("recall", '{"query": "home"}'),
    ],
)
def test_without_a_memory_its_tools_say_so(name: str, arguments: str) -> None:
    """Lost if red: a model that promises to remember what no one keeps."""

    async def then(made: Toolbox) -> ToolOutcome:
        return await made.call(wish(arguments, name), CONTEXT)

    outcome: ToolOutcome = opened({"kind": "builtin", "name": name}, then=then)
    assert outcome == ToolOutcome(text="There is no memory here.", is_error=True)


def test_every_kind_of_definition_has_a_factory() -> None:
    """Lost if red: a kind that can be saved and never works."""
    schema = TypeAdapter(ToolDefinition).json_schema()
    assert set(KINDS) == set(schema["discriminator"]["mapping"])
