"""The `mcp` tool kind: what of a server is offered, for how long it is known, what a call says."""

import asyncio
import logging
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chalicelib.outbound import Guard
from chalicelib.providers.base import ToolCall
from chalicelib.tools.base import ToolFailed
from chalicelib.tools.mcp import ASKED_AGAIN_AFTER, FRESH, Listings, offered_name
from chalicelib.tools.toolbox import open_toolbox
from tests.fakes.mcp_server import FakeMcp, error, hang, raw, result, status, text, tool
from tests.support.mcp import CONTEXT, call, entry, run, tool_deps, tools_of

OBJECT: dict[str, Any] = {"type": "object"}


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


# --- what is offered ------------------------------------------------------------------------------
def test_all_pages_are_offered_under_the_entrys_name() -> None:
    """Lost if red: every tool behind a server's first page; or whose it is."""

    async def scenario() -> None:
        schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
        listed = [tool("add", inputSchema=schema), *(tool(f"t{n}") for n in range(6))]
        async with FakeMcp(tools=listed, page_size=2) as fake, tools_of(entry(fake.url)) as tools:
            assert list(tools) == ["srv__add", *(f"srv__t{n}" for n in range(6))]
            assert tools["srv__add"].spec.parameters == schema
            assert tools["srv__add"].spec.description == "Does add."
            assert await call(tools["srv__add"], a=1) == "add done"
            assert fake.ran == [("add", {"a": 1})]

    run(scenario())


def test_only_named_tools_are_offered(caplog: pytest.LogCaptureFixture) -> None:
    """Lost if red: the agent that may read mail, and now can send it; or why a tool is missing."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("read"), tool("send")]) as fake:
            definition = entry(fake.url, tools=["read", "search"])
            async with tools_of(definition) as tools:
                assert list(tools) == ["srv__read"]

    run(scenario())
    (said,) = [one.__dict__ for one in caplog.records]
    assert (said["action"], said["tool"]) == ("mcp_tool_left_out", "search")


@pytest.mark.parametrize(
    "odd",
    [
        pytest.param({"name": "odd"}, id="no-schema"),
        pytest.param(tool("odd", inputSchema=["x"]), id="schema-is-a-list"),
        pytest.param(tool("odd", inputSchema={"type": "string"}), id="schema-of-a-text"),
        pytest.param(tool("odd", inputSchema={**OBJECT, "x": "x" * 65_536}), id="schema-too-large"),
        pytest.param(
            tool("odd", inputSchema={**OBJECT, "properties": {"a": {"$ref": "http://127.0.0.1/"}}}),
            id="schema-that-is-elsewhere",
        ),
        pytest.param(tool("odd", inputSchema={**OBJECT, "properties": 5}), id="schema-is-none"),
        pytest.param(tool("x" * 129), id="name-too-long"),
        pytest.param(tool(" "), id="name-blank"),
        pytest.param(tool("odd\x00"), id="name-with-a-nul"),
        pytest.param(tool("fine", description="Another."), id="name-taken"),
        pytest.param({"inputSchema": OBJECT}, id="no-name"),
        pytest.param("odd", id="no-object"),
    ],
)
def test_tool_that_no_model_could_call_is_left_out_alone(odd: Any) -> None:
    """Lost if red: a server's other tools; or every turn, which a vendor refuses for one schema."""

    async def scenario() -> None:
        listed = [tool("fine"), odd, tool("last")]
        async with FakeMcp(tools=listed) as fake, tools_of(entry(fake.url)) as tools:
            assert list(tools) == ["srv__fine", "srv__last"]
            assert tools["srv__fine"].spec.description == "Does fine."

    run(scenario())


def test_no_more_tools_are_offered_than_a_vendor_takes() -> None:
    """Lost if red: every turn of an agent whose server has 200 tools."""

    async def scenario() -> None:
        listed = [tool(f"t{n}") for n in range(130)]
        async with FakeMcp(tools=listed) as fake, tools_of(entry(fake.url)) as tools:
            assert len(tools) == 128

    run(scenario())


@pytest.mark.parametrize("page_size", [1, 1000], ids=["in-pages", "at-once"])
def test_listing_without_measure_is_not_read(page_size: int) -> None:
    """Lost if red: the process, to a server that lists on and on."""

    async def scenario() -> None:
        listed = [tool(f"t{n}", description="x" * 1_500_000) for n in range(3)]
        async with FakeMcp(tools=listed, page_size=page_size) as fake:
            with pytest.raises(ToolFailed, match="too large"):
                async with tools_of(entry(fake.url)):
                    pass

    run(scenario())


def test_pages_that_lead_to_themselves_come_to_an_end() -> None:
    """Lost if red: every turn, to a server that counts its pages wrongly."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add"), tool("sub")], page_size=1) as fake:
            again = {"tools": [tool("sub")], "nextCursor": "1"}
            fake.fail("tools/list", *[result(again)] * 2)
            async with tools_of(entry(fake.url)) as tools:
                assert list(tools) == ["srv__sub"]
            assert len(fake.asked("tools/list")) == 2
            numbers = [{"tools": [tool("add")], "nextCursor": str(n)} for n in range(60)]
            fake.fail("tools/list", *map(result, numbers))
            async with tools_of(entry(fake.url)) as tools:
                assert list(tools) == ["srv__add"]
            assert len(fake.asked("tools/list")) == 52

    run(scenario())


@pytest.mark.parametrize(
    ("listed", "shown"),
    [
        pytest.param({"description": "  Adds.\n"}, "Adds.", id="as-it-is"),
        pytest.param({"description": "", "title": "Add"}, "Add", id="title-for-want-of-it"),
        pytest.param({"description": None}, "add", id="name-for-want-of-both"),
        pytest.param({"description": "x" * 5000}, "x" * 1023 + "…", id="bounded"),
        pytest.param({"description": "a\x00b"}, "a\ufffdb", id="without-nul"),
    ],
)
def test_description_is_one_that_vendors_take(listed: dict[str, Any], shown: str) -> None:
    """Lost if red: every turn, which a vendor refuses for one description."""

    async def scenario() -> None:
        fake = FakeMcp(tools=[tool("add", **listed)])
        async with fake, tools_of(entry(fake.url)) as tools:
            assert tools["srv__add"].spec.description == shown

    run(scenario())


@pytest.mark.parametrize("says", [True, False])
def test_what_a_server_says_of_its_tools_decides_nothing(says: bool) -> None:
    """Lost if red: `readOnlyTools`, to a server that calls its `delete` a reading one."""
    hints = {"readOnlyHint": says, "idempotentHint": says, "destructiveHint": not says}

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add", annotations=hints)]) as fake:
            async with tools_of(entry(fake.url)) as tools:
                made = tools["srv__add"]
                assert (made.read_only, made.idempotent) == (False, False)
                assert (made.approval, made.timeout) == ("never", 30.0)
            more = {"readOnly": True, "idempotent": True, "approval": "always", "timeout": 5}
            async with tools_of(entry(fake.url, **more)) as tools:
                made = tools["srv__add"]
                assert (made.read_only, made.idempotent) == (True, True)
                assert (made.approval, made.timeout) == ("always", 5.0)

    run(scenario())


# --- names ----------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("tool", "pattern"),
    [
        pytest.param("add", r"srv__add", id="as-it-is"),
        pytest.param("a-b_c", r"srv__a-b_c", id="all-that-vendors-take"),
        pytest.param("a.b", r"srv__a_b_[0-9a-f]{8}", id="a-dot"),
        pytest.param("日本", r"srv_____[0-9a-f]{8}", id="other-letters"),
        pytest.param("x" * 59, r"srv__x{59}", id="longest"),
        pytest.param("x" * 60, r"srv__x{50}_[0-9a-f]{8}", id="too-long"),
    ],
)
def test_name_is_the_servers_own_where_it_can_be(tool: str, pattern: str) -> None:
    """Lost if red: a model that knows what it calls; and a prompt that names a tool."""
    assert re.fullmatch(pattern, offered_name("srv", tool))


@given(
    st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    st.lists(st.text(st.sampled_from("ab_.- é"), min_size=1, max_size=70), unique=True),
)
def test_names_are_unique_and_such_as_vendors_take(prefix: str, tools: list[str]) -> None:
    """Lost if red: an approved call that reaches another tool, or a turn that a vendor refuses."""
    names = {offered_name(prefix, tool) for tool in tools}
    assert len(names) == len(tools)
    assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in names)


# --- how long a listing is known ------------------------------------------------------------------
def test_listing_is_asked_for_once_in_five_minutes() -> None:
    """Lost if red: a second at the start of each turn; or a new tool until the next deploy."""

    async def scenario() -> None:
        clock = Clock()
        listings = Listings(clock=clock)
        async with FakeMcp(tools=[tool("add")]) as fake:
            definition = entry(fake.url)
            for moved, lists, offered in ((0, 1, 1), (FRESH - 1, 1, 1), (1, 2, 2), (1, 2, 2)):
                clock.now += moved
                async with tools_of(definition, listings=listings) as tools:
                    assert len(tools) == offered
                    assert len(fake.asked("tools/list")) == lists
                fake.tools = [tool("add"), tool("sub")]
            async with tools_of(definition, listings=listings) as tools:
                assert await call(tools["srv__sub"]) == "sub done"  # over a session of its own

    run(scenario())


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"tenant_id": "ten_2"}, id="tenant"),
        pytest.param({"secrets": {"key": "other"}}, id="secret"),
        pytest.param({"definition": {"headers": {"X-Key": "x"}}}, id="headers"),
        pytest.param({"definition": {"tools": ["add"]}}, id="tools"),
    ],
)
def test_listing_is_known_to_none_but_those_who_were_given_it(other: dict[str, Any]) -> None:
    """Lost if red: one tenant's, or one key's, tools in another's prompt."""

    async def scenario() -> None:
        listings = Listings()
        async with FakeMcp(tools=[tool("add")]) as fake:
            headers = {"Authorization": "Bearer {{secret:key}}"}
            one: dict[str, Any] = {
                "tenant_id": "ten_1",
                "secrets": {"key": "one"},
                "definition": {},
            }
            for lists, who in ((1, one), (2, {**one, **other}), (2, one)):
                definition = entry(fake.url, **{"headers": headers, **who["definition"]})
                deps = tool_deps(who["secrets"])
                tenant_id = who["tenant_id"]
                async with tools_of(
                    definition, deps=deps, tenant_id=tenant_id, listings=listings
                ) as tools:
                    assert len(tools) == 1
                assert len(fake.asked("tools/list")) == lists

    run(scenario())


@pytest.mark.parametrize(
    "down",
    [
        pytest.param(status(500), id="server-error"),
        pytest.param(status(429), id="too-many"),
        pytest.param(raw(b"<html>Back soon!", "text/html"), id="somebody-answers-for-it"),
        pytest.param(hang(), id="does-not-answer"),
        pytest.param(None, id="not-there"),
    ],
)
def test_known_listing_holds_while_the_server_is_down(down: Any) -> None:
    """Lost if red: an agent that forgets its tools with each hiccup of their server."""

    async def scenario() -> None:
        clock = Clock()
        listings = Listings(clock=clock)
        async with FakeMcp(tools=[tool("add")]) as fake:
            definition = entry(fake.url, timeout=1)
            async with tools_of(definition, listings=listings):
                pass
            clock.now += FRESH
            if down is None:
                await fake.stop()
            fake.fail("tools/list", *[down] * 2)
            for moved in (0, ASKED_AGAIN_AFTER - 1):
                clock.now += moved
                asked = len(fake.asked("tools/list"))
                async with tools_of(definition, listings=listings) as tools:
                    assert list(tools) == ["srv__add"]
                # a turn need not wait for what the one before it has found out
                assert moved == 0 or len(fake.asked("tools/list")) == asked

    run(scenario())


@pytest.mark.parametrize(
    ("refusal", "told"),
    [
        pytest.param([status(401)], "credentials (HTTP 401)", id="key-refused"),
        pytest.param([error(-32603, "private")], "answered with an error", id="error"),
        pytest.param([raw(b'{"jsonrpc": "2.0", "id": 2, "result": {}}')] * 2, "read", id="none"),
        pytest.param([hang()], "in time", id="does-not-answer"),
        pytest.param([status(500)] * 2, "HTTP 500", id="server-error"),
    ],
)
def test_source_that_does_not_list_is_refused_and_not_asked_at_once_again(
    refusal: list[Any], told: str
) -> None:
    """Lost if red: a turn without its tools that nobody explains; or one that always waits."""

    async def scenario() -> None:
        clock = Clock()
        listings = Listings(clock=clock)
        async with FakeMcp(tools=[tool("add")]) as fake:
            fake.fail("tools/list", *refusal)
            for _ in range(2):
                with pytest.raises(ToolFailed, match=re.escape(told)) as failed:
                    async with tools_of(entry(fake.url, timeout=1), listings=listings):
                        pass
                assert "private" not in str(failed.value)
            assert len(fake.asked("tools/list")) == len(refusal)
            clock.now += ASKED_AGAIN_AFTER
            async with tools_of(entry(fake.url), listings=listings) as tools:
                assert list(tools) == ["srv__add"]

    run(scenario())


def test_key_that_is_withdrawn_ends_what_was_known() -> None:
    """Lost if red: tools that are offered, and refused at each call, for ever."""

    async def scenario() -> None:
        clock = Clock()
        listings = Listings(clock=clock)
        async with FakeMcp(tools=[tool("add")]) as fake:
            async with tools_of(entry(fake.url), listings=listings):
                pass
            clock.now += FRESH
            fake.auth = "Bearer new"
            with pytest.raises(ToolFailed):
                async with tools_of(entry(fake.url), listings=listings):
                    pass

    run(scenario())


def test_listings_that_are_kept_are_bounded() -> None:
    """Lost if red: the process, to a tenant with many servers or one with large listings."""

    async def scenario() -> None:
        listings = Listings()
        large = [
            tool(f"t{n}", inputSchema={**OBJECT, "description": "x" * 60_000}) for n in range(60)
        ]
        async with FakeMcp(tools=large) as fake:
            for lists, name in enumerate(("a", "b", "c", "d", "e", "e", "a")):
                async with tools_of(entry(fake.url, headers={"X": name}), listings=listings) as all:
                    assert len(all) == 60
                assert len(fake.asked("tools/list")) == min(lists + 1, 5) + (lists == 6)

    run(scenario())


# --- what a call says -----------------------------------------------------------------------------
IMAGE = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
SOUND = {"type": "audio", "data": "aGk=", "mimeType": "audio/wav"}
LINK = {"type": "resource_link", "uri": "file:///a.txt", "name": "a"}
EMBEDDED = {"type": "resource", "resource": {"uri": "file:///a.txt", "text": "inside"}}
FILE = {"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "aGk="}}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        pytest.param(text("one", "two"), "one\ntwo", id="texts"),
        pytest.param(text("one", structuredContent={"n": 1}), "one", id="text-before-structure"),
        pytest.param(
            {"content": [], "structuredContent": {"n": "é"}}, '{"n": "é"}', id="structure"
        ),
        pytest.param(text("", structuredContent={"n": 1}), '{"n": 1}', id="structure-for-no-text"),
        pytest.param(
            {"content": [IMAGE, SOUND, FILE]},
            "[image left out: image/png]\n[audio left out: audio/wav]\n"
            "[resource left out: of no known type]",
            id="what-is-no-text",
        ),
        pytest.param(
            {"content": [*text("see")["content"], IMAGE, LINK, EMBEDDED]},
            "see\n[link to a: file:///a.txt]\ninside\n[image left out: image/png]",
            id="mixed",
        ),
        pytest.param({"content": []}, "[the tool returned nothing]", id="nothing"),
        pytest.param(text("a\x00b"), "a\ufffdb", id="nul"),
        pytest.param(text("x" * 990_000), "x" * 990_000, id="large"),
    ],
)
@pytest.mark.parametrize("sse", [False, True], ids=["json", "events"])
def test_result_is_a_text(result: dict[str, Any], said: str, sse: bool) -> None:
    """Lost if red: what a tool answered, to a model that reads texts."""

    async def scenario() -> None:
        fake = FakeMcp(tools=[tool("get", outputSchema=OBJECT)], sse=sse)
        async with fake, tools_of(entry(fake.url)) as tools:
            fake.results["get"] = result
            assert await call(tools["srv__get"]) == said

    run(scenario())


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        pytest.param(None, "no such city", id="tool-says-so"),
        pytest.param(
            error(-32602, "no `city`"),
            "The MCP server answered with an error.\nno `city`",
            id="server-says-so",
        ),
        pytest.param(
            status(500),
            "The MCP server answered with HTTP 500. Whether the tool was run is unknown.",
            id="outcome-unknown",
        ),
        pytest.param(
            status(401),
            "The MCP server refuses these credentials (HTTP 401). The tool was not run.",
            id="not-run",
        ),
        pytest.param(
            error(1, "x" * 99_999),
            "The MCP server answered with an error.\n" + "x" * 1999 + "…",
            id="bounded",
        ),
    ],
)
def test_failure_is_told_to_the_model(fault: Any, told: str) -> None:
    """Lost if red: a model that could do it right the second time; or that believes it was done."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("get")]) as fake, tools_of(entry(fake.url)) as tools:
            fake.results["get"] = text("no such city", isError=True)
            if fault is not None:
                fake.fail("tools/call", fault)
            with pytest.raises(ToolFailed) as failed:
                await call(tools["srv__get"])
            assert str(failed.value) == told

    run(scenario())


@pytest.mark.parametrize("more", [{"readOnly": True}, {"idempotent": True}, {}])
def test_only_what_the_entry_calls_harmless_is_repeated(more: dict[str, Any]) -> None:
    """Lost if red: the second order; or the answer of a search."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("get")]) as fake, tools_of(entry(fake.url, **more)) as tools:
            fake.fail("tools/call", status(500))
            if more:
                assert await call(tools["srv__get"]) == "get done"
            else:
                with pytest.raises(ToolFailed):
                    await call(tools["srv__get"])
            assert len(fake.ran) == len(more)

    run(scenario())


# --- secrets, addresses, and the toolbox ----------------------------------------------------------
def test_secret_goes_to_the_server_and_into_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    """Lost if red: a tenant's key, to a model, an event or a log."""
    caplog.set_level(logging.DEBUG, logger="chalicelib")
    listed = [tool("echo", description="Bearer s3cr3t-key"), tool("bad", inputSchema={"s3cr3t": 1})]

    async def scenario() -> None:
        deps = tool_deps({"crm": "s3cr3t-key"})
        async with FakeMcp(tools=listed, auth="Bearer s3cr3t-key") as fake:
            definition = entry(fake.url, headers={"Authorization": "Bearer {{secret:crm}}"})
            box = await open_toolbox([definition], tenant_id="ten_1", read_only=False, deps=deps)
            try:
                assert [spec.description for spec in box.specs] == ["Bearer ***"]
                for fault in (
                    None,
                    status(401),
                    error(-32603, "s3cr3t-key " + "x" * 1980 + " s3cr3t-key"),
                    raw(b"s3cr3t-key"),
                ):
                    fake.results["echo"] = text("s3cr3t-key")
                    fake.fail("tools/call", *([] if fault is None else [fault]))
                    asked = ToolCall(id="c", name="srv__echo", arguments="{}")
                    outcome = await box.call(asked, CONTEXT)
                    assert "s3cr3t" not in outcome.text
            finally:
                await box.close()
            assert fake.open == set()

    run(scenario())
    assert "s3cr3t" not in "".join(str(one.__dict__) for one in caplog.records)


@pytest.mark.parametrize(
    ("url", "guard", "told"),
    [
        pytest.param("http://tools.example/mcp", Guard([]), "https", id="no-tls"),
        pytest.param("https://127.0.0.1/mcp", Guard([]), "no public address", id="private"),
        pytest.param(None, None, "secret `crm`", id="secret-is-missing"),
    ],
)
def test_source_that_may_not_be_asked_is_not(url: str | None, guard: Any, told: str) -> None:
    """Lost if red: our network, to anyone who may define an agent."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake:
            headers = {} if url else {"X-Key": "{{secret:crm}}"}
            deps = tool_deps(guard=guard) if guard else tool_deps()
            with pytest.raises(ToolFailed, match=told):
                async with tools_of(entry(url or fake.url, headers=headers), deps=deps):
                    pass
            assert fake.seen == []

    run(scenario())


def test_turn_goes_on_without_a_server_that_is_down() -> None:
    """Lost if red: every turn of an agent, to one of its servers."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as up, FakeMcp(tools=[tool("add")]) as down:
            down.fail("initialize", hang())
            definitions = [entry(down.url, name="down", timeout=0.5), entry(up.url)]
            for _ in range(2):
                box = await open_toolbox(
                    definitions, tenant_id="ten_1", read_only=False, deps=tool_deps()
                )
                assert [spec.name for spec in box.specs] == ["srv__add"]
                await box.close()
            # and the next one does not wait for it
            assert len(down.asked("initialize")) == 1

    run(scenario())


def test_call_that_takes_too_long_is_cut_and_its_session_is_not_held() -> None:
    """Lost if red: the turn, to a tool that hangs; or a connection for each time it does."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("slow")]) as fake:
            box = await open_toolbox(
                [entry(fake.url, timeout=1)], tenant_id="ten_1", read_only=False, deps=tool_deps()
            )
            fake.before_result["slow"] = asyncio.Event().wait
            outcome = await box.call(ToolCall(id="c", name="srv__slow", arguments="{}"), CONTEXT)
            assert outcome.is_error
            assert "timed out" in outcome.text
            await fake.arrival("notifications/cancelled")
            await box.close()
            assert fake.open == set()

    run(scenario())
