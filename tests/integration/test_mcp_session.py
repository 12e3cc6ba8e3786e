"""Sessions with an MCP server: what a call's end means, who shares a session and who ends it.

The server is a fake at the wire. Every scenario runs on both kinds of loop and must leave nothing
behind on it.
"""

import asyncio
import logging
import os
import ssl
import subprocess
import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import aiohttp
import httpx2
import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from chalicelib.outbound import Guard
from chalicelib.tools.mcp_client import Address, McpFailed, McpServer
from chalicelib.tools.mcp_wire import EXCHANGE, EXPIRED, LOST, Exchange, Fault, Wire
from tests.fakes.mcp_server import (
    MODERN,
    Answer,
    FakeMcp,
    cut,
    error,
    events,
    hang,
    open_stream,
    raw,
    result,
    send,
    status,
    text,
    tool,
)
from tests.support import mcp
from tests.support.mcp import LOCAL, client

Run = Callable[[Coroutine[Any, Any, None]], None]

PROGRESS = {
    "jsonrpc": "2.0",
    "method": "notifications/progress",
    "params": {"progressToken": 1, "progress": 1},
}


@pytest.fixture(params=["uvloop", "asyncio"])
def run(request: pytest.FixtureRequest) -> Run:
    return lambda work: mcp.run(work, loop=request.param)


async def fault_of(server: McpServer, name: str = "add", *, repeatable: bool = False) -> Fault:
    with pytest.raises(McpFailed) as failed:
        await server.call(name, {}, repeatable=repeatable)
    return failed.value.fault


# --- what a failure means -------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("faults", "ran", "told", "carried_out"),
    [
        pytest.param([cut(after=False)], "unknown", "broke before", 0, id="reset-before-the-call"),
        pytest.param([cut(after=True)], "unknown", "broke before", 1, id="reset-after-the-call"),
        pytest.param([status(500)], "unknown", "HTTP 500", 0, id="server-error"),
        pytest.param([status(503)], "unknown", "HTTP 503", 0, id="unavailable"),
        pytest.param([status(401)], "no", "credentials (HTTP 401)", 0, id="key-refused"),
        pytest.param([status(403, {"error": "x"})], "no", "credentials", 0, id="forbidden"),
        pytest.param([status(429)], "no", "HTTP 429", 0, id="too-many"),
        pytest.param([status(202)], "unknown", "cannot be read", 0, id="accepted-and-no-answer"),
        pytest.param([raw(b"{nope")], "unknown", "cannot be read", 0, id="broken-json"),
        pytest.param([raw(b"[" * 99_999)], "unknown", "cannot be read", 0, id="json-without-end"),
        pytest.param([raw(b"[]")], "unknown", "cannot be read", 0, id="no-message"),
        pytest.param([raw(b"hi", "text/plain")], "unknown", "cannot be read", 0, id="text"),
        pytest.param(
            [raw(b'{"jsonrpc": "2.0", "id": 99, "result": {}}')],
            *("unknown", "cannot be read", 0),
            id="answer-to-another-question",
        ),
        pytest.param(
            [result({"content": "3"})], "unknown", "cannot be read", 0, id="result-of-another-shape"
        ),
        pytest.param(
            [raw(b"event: message\ndata: {nope\n\n", "text/event-stream")],
            *("unknown", "cannot be read", 0),
            id="broken-event",
        ),
        pytest.param([events()], "unknown", "broke before", 0, id="stream-without-the-answer"),
        pytest.param([events(reset=True)], "unknown", "broke before", 0, id="stream-reset"),
        pytest.param([events(endless=True)], "answered", "too large", 0, id="stream-without-end"),
        pytest.param(
            [events(PROGRESS, id="7", endless=True)],
            *("answered", "too large", 0),
            id="stream-without-end-that-could-be-resumed",
        ),
        pytest.param([raw(b" " * 1_000_001)], "answered", "too large", 0, id="too-large"),
        pytest.param(
            [events(PROGRESS, id="7", reset=True)],
            *("unknown", "broke before", 0),
            id="stream-that-cannot-be-resumed",
        ),
        pytest.param(
            [status(307, Location="http://169.254.169.254/latest/meta-data")],
            *("no", "redirects elsewhere", 0),
            id="redirect-to-a-private-address",
        ),
        pytest.param([status(302, Location="/mcp")], "no", "redirects", 0, id="redirect-to-a-get"),
        pytest.param([error(-32602, "no")], "answered", "with an error", 0, id="error"),
        pytest.param([error(-32000, "no")], "answered", "with an error", 0, id="error-of-its-own"),
        pytest.param(
            [error(-32602, "no", status=400)], "answered", "with an error", 0, id="error-and-status"
        ),
        pytest.param(
            [raw(b'{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "no"}}')],
            *("answered", "with an error", 0),
            id="error-without-an-id",
        ),
        pytest.param([status(404)] * 2, "no", "ended the session", 0, id="never-a-session"),
    ],
)  # fmt: skip
def test_failed_call_is_told_for_what_it_was_and_not_made_again(
    run: Run, faults: list[Any], ran: str, told: str, carried_out: int
) -> None:
    """Lost if red: knowing whether the mail was sent; or it is sent twice."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake, client(fake) as server:
            fake.fail("tools/call", *faults)
            fault = await fault_of(server)
            assert (fault.ran, len(fake.ran)) == (ran, carried_out)
            assert told in fault.told
            assert len(fake.asked("tools/call")) == len(faults)
            # and the session, or a new one, goes on
            answer = await server.call("add", {"a": 1}, repeatable=False)
            assert answer.content[0].type == "text"
            assert fake.ran[-1] == ("add", {"a": 1})

    run(scenario())


@pytest.mark.parametrize("fault", [cut(after=True), status(500), events(), raw(b"{nope")])
def test_call_that_may_be_repeated_is(run: Run, fault: Any) -> None:
    """Lost if red: a reading tool's answer, for one broken connection."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("get")]) as fake, client(fake) as server:
            fake.fail("tools/call", fault)
            await server.call("get", {}, repeatable=True)
            assert len(fake.asked("tools/call")) == 2
            fake.fail("tools/call", fault, fault)
            assert (await fault_of(server, "get", repeatable=True)).ran == "unknown"
            assert len(fake.asked("tools/call")) == 4

    run(scenario())


@pytest.mark.parametrize(
    "forgotten",
    [
        pytest.param(None, id="as-the-protocol-says"),
        pytest.param(error(-32000, "no session", status=400), id="as-many-servers-say"),
    ],
)
def test_call_in_a_session_that_the_server_forgot_is_made_in_a_new_one(
    run: Run, forgotten: Any
) -> None:
    """Lost if red: every tool of a server that was restarted, until our process is."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake, client(fake) as server:
            await server.call("add", {"n": 1}, repeatable=False)
            if forgotten is None:
                fake.open.clear()
            else:
                fake.fail("tools/call", forgotten)
            await asyncio.gather(
                *(server.call("add", {"n": n}, repeatable=False) for n in (2, 3, 4))
            )
            assert sorted(arguments["n"] for _, arguments in fake.ran) == [1, 2, 3, 4]
            assert len(fake.asked("initialize")) == 2

    run(scenario())


def test_late_word_of_an_old_session_does_not_end_the_new_one(run: Run) -> None:
    """Lost if red: what the server keeps in its session, after which one call follows another."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake, client(fake) as server:
            gate = asyncio.Event()

            async def late(
                _fake: FakeMcp, _request: web.Request, _answer: Answer
            ) -> web.StreamResponse:
                await gate.wait()
                return web.Response(status=404)

            fake.fail("tools/call", late, status(404))
            slow = asyncio.create_task(server.call("add", {"n": 1}, repeatable=False))
            await fake.arrival("tools/call")
            await server.call("add", {"n": 2}, repeatable=False)
            gate.set()
            await slow
            await server.call("add", {"n": 3}, repeatable=False)
            assert [one["n"] for _, one in fake.ran] == [2, 1, 3]
            assert len(fake.asked("initialize")) == 2

    run(scenario())


def test_server_that_comes_back_is_called_again(run: Run) -> None:
    """Lost if red: the server's tools after its restart; or a call that waits for nothing."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake, client(fake) as server:
            await server.call("add", {}, repeatable=False)
            await fake.stop()
            fault = await fault_of(server)
            assert (fault.ran, fault.told) == ("no", "The MCP server cannot be reached.")
            fake.open.clear()
            await fake.start()
            await server.call("add", {}, repeatable=False)

    run(scenario())


@pytest.mark.parametrize(
    ("faults", "told"),
    [
        pytest.param([status(401)], "credentials (HTTP 401)", id="key-refused"),
        pytest.param([status(404)], "HTTP 404", id="no-such-path"),
        pytest.param([cut(after=False)] * 2, "broke before", id="reset-twice"),
        pytest.param([status(500)] * 2, "HTTP 500", id="server-error-twice"),
        pytest.param([raw(b"<html>", "text/html")] * 2, "cannot be read", id="no-mcp-at-all"),
        pytest.param([error(-32603, "no")], "with an error", id="error"),
        pytest.param(
            [raw(b'{"jsonrpc": "2.0", "id": 1, "result": {"protocolVersion": "1"}}')],
            *("does not answer as one",),
            id="result-that-is-none",
        ),
    ],
)
def test_session_that_is_not_opened_ran_nothing(run: Run, faults: list[Any], told: str) -> None:
    """Lost if red: knowing that nothing was done; or a server that is asked without end."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake, client(fake) as server:
            fake.fail("initialize", *faults)
            fault = await fault_of(server)
            assert fault.ran == "no"
            assert told in fault.told
            assert len(fake.asked("initialize")) == len(faults)
            await server.call("add", {}, repeatable=False)

    run(scenario())


def test_reset_at_the_greeting_is_tried_again(run: Run) -> None:
    """Lost if red: a call that was never made, for one broken connection."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake, client(fake) as server:
            fake.fail("initialize", cut(after=False))
            await server.call("add", {}, repeatable=False)
            assert len(fake.ran) == 1

    run(scenario())


# --- streams --------------------------------------------------------------------------------------
def test_broken_stream_is_resumed_where_the_server_can(run: Run) -> None:
    """Lost if red: the answer of a long call, which was carried out once and will not be twice."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("slow")], sse=True) as fake, client(fake) as server:

            async def rest(
                _fake: FakeMcp, request: web.Request, _answer: Answer
            ) -> web.StreamResponse:
                stream = await open_stream(request)
                call = fake.asked("tools/call")[0].message["id"]
                await send(stream, {"jsonrpc": "2.0", "id": call, "result": text("done")})
                return stream

            fake.fail("tools/call", events(PROGRESS, id="7", reset=True))
            fake.fail("GET", cut(after=False), rest)
            answer = await server.call("slow", {}, repeatable=False)
            assert [block.model_dump()["text"] for block in answer.content] == ["done"]
            assert [one.headers["last-event-id"] for one in fake.asked("GET")] == ["7", "7"]
            assert len(fake.asked("tools/call")) == 1

    run(scenario())


def test_session_that_is_gone_when_a_stream_is_resumed_leaves_the_outcome_open(run: Run) -> None:
    """Lost if red: an order that is placed twice, since an expired session seems to be safe."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("slow")]) as fake, client(fake) as server:
            fake.fail("tools/call", events(PROGRESS, id="7", reset=True))
            fake.fail("GET", status(404), status(404))
            assert (await fault_of(server, "slow")).ran == "unknown"
            assert len(fake.asked("tools/call")) == 1

    run(scenario())


def test_server_may_ask_back_while_it_answers(run: Run) -> None:
    """Lost if red: servers that check whether their client is still there."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")], sse=True) as fake, client(fake) as server:

            async def asks_back(
                _fake: FakeMcp, request: web.Request, _answer: Answer
            ) -> web.StreamResponse:
                stream = await open_stream(request)
                for number, method in enumerate(("ping", "sampling/createMessage")):
                    params = {"messages": [], "maxTokens": 1} if number else {}
                    ask = {"jsonrpc": "2.0", "id": f"s{number}", "method": method}
                    await send(stream, {**ask, "params": params})
                    await fake.arrival("POST", number + 1)
                call = fake.asked("tools/call")[0].message["id"]
                await send(stream, {"jsonrpc": "2.0", "id": call, "result": text("3")})
                return stream

            fake.fail("tools/call", asks_back)
            await server.call("add", {}, repeatable=False)
            pong, refusal = (one.message for one in fake.asked("POST"))
            assert (pong["id"], pong["result"]) == ("s0", {})
            assert (refusal["id"], "error" in refusal) == ("s1", True)

    run(scenario())


# --- whose session --------------------------------------------------------------------------------
def test_calls_side_by_side_share_a_session_and_not_their_failures(run: Run) -> None:
    """Lost if red: parallel calls that wait for each other, or fall with each other."""

    async def scenario() -> None:
        names = ("one", "two", "three")
        async with FakeMcp(tools=map(tool, names)) as fake, client(fake) as server:
            gate = asyncio.Event()
            for name in names[1:]:
                fake.before_result[name] = gate.wait
            held = [
                asyncio.create_task(server.call(name, {}, repeatable=False)) for name in names[1:]
            ]
            await fake.arrival("tools/call", 2)
            for fault in (cut(after=False), status(500), raw(b"{nope"), events(endless=True)):
                fake.fail("tools/call", fault)
                await fault_of(server, "one")
            gate.set()
            await asyncio.gather(*held)
            assert sorted(name for name, _ in fake.ran) == ["three", "two"]
            assert len(fake.asked("initialize")) == 1

    run(scenario())


@pytest.mark.parametrize("method", ["initialize", "notifications/initialized", "tools/call"])
def test_cancelled_call_leaves_nothing_behind(run: Run, method: str) -> None:
    """Lost if red: the server's memory and ours, by one connection for each turn that is cut."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake, client(fake) as server:
            fake.fail(method, hang())
            calling = asyncio.create_task(server.call("add", {}, repeatable=False))
            await fake.arrival(method)
            calling.cancel()
            with pytest.raises(asyncio.CancelledError):
                await calling
            if method == "tools/call":
                cancelled = await fake.arrival("notifications/cancelled")
                assert (
                    cancelled.message["params"]["requestId"]
                    == (fake.asked("tools/call")[0].message["id"])
                )
            await server.call("add", {}, repeatable=False)
            assert len(fake.ran) == 1
            await server.close()
            assert fake.open == set()

    run(scenario())


@pytest.mark.parametrize(
    "fault", [pytest.param([], id="in-order"), pytest.param([hang()], id="server-does-not-answer")]
)
def test_session_is_ended_with_its_client(run: Run, fault: list[Any]) -> None:
    """Lost if red: sessions that pile up in somebody's server."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake:
            async with client(fake) as server:
                await server.call("add", {}, repeatable=False)
                fake.fail("DELETE", *fault)
            assert [one.headers["mcp-session-id"] for one in fake.asked("DELETE")] == ["session-1"]
            assert fake.open == ({"session-1"} if fault else set())

    run(scenario())


def test_call_in_a_session_that_is_closed_is_told_so(run: Run) -> None:
    """Lost if red: a call that waits for ever, or seems never to have been made."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake, client(fake) as server:
            fake.fail("tools/call", hang())
            calling = asyncio.create_task(fault_of(server))
            await fake.arrival("tools/call")
            await server.close()
            assert (await calling).ran == "unknown"
            assert len(fake.asked("tools/call")) == 1
            assert fake.open == set()

    run(scenario())


def test_session_keeps_its_cookies_and_no_other_session_does(run: Run) -> None:
    """Lost if red: servers behind a balancer that finds a session's machine by a cookie."""

    async def lookup(_host: str, _port: int) -> list[str]:
        return ["127.0.0.1"]

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake:
            url, guard = (
                f"http://mcp.example:{fake.port}/mcp",
                Guard(["mcp.example"], lookup=lookup),
            )
            fake.headers = {"Set-Cookie": "machine=7"}
            for _ in range(2):
                async with client(fake, url=url, guard=guard) as server:
                    await server.call("add", {}, repeatable=False)
            sent = [(one.method, one.headers.get("cookie")) for one in fake.seen]
            assert sent[:3] == sent[4:7]
            assert sent[4] == ("initialize", None)
            assert sent[6] == ("tools/call", "machine=7")

    run(scenario())


def test_session_that_nobody_uses_ends_by_itself(run: Run) -> None:
    """Lost if red: the same, where a turn was killed before it could close what it held."""

    async def scenario() -> None:
        fake = FakeMcp(tools=[tool("add")])
        async with fake, client(fake, unused_at_most=0.2) as server:
            gate = asyncio.Event()
            fake.before_result["add"] = gate.wait
            asyncio.get_running_loop().call_later(0.5, gate.set)
            await server.call("add", {}, repeatable=False)  # takes longer, and is no rest
            assert fake.asked("DELETE") == []
            await fake.arrival("DELETE")
            await server.call("add", {}, repeatable=False)
            assert len(fake.asked("initialize")) == 2

    run(scenario())


def test_loop_that_ends_with_a_session_open_ends_quietly() -> None:
    """Lost if red: a process that hangs, or complains, at its end."""
    told: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, one: told.append(one))
        async with FakeMcp(tools=[tool("add")]) as fake:
            server = McpServer(Address(url=fake.url, headers={}, guard=LOCAL))
            await server.call("add", {}, repeatable=False)

    with asyncio.Runner() as runner:
        runner.run(scenario())
    assert told == []


# --- newer servers --------------------------------------------------------------------------------
def test_server_of_the_protocol_without_sessions_is_spoken_to_in_its_own(run: Run) -> None:
    """Lost if red: servers that no longer know the handshake."""
    region = {"type": "string", "x-mcp-header": "Region"}
    schema = {"type": "object", "properties": {"region": region}}

    async def scenario() -> None:
        listed = [tool("add", inputSchema=schema), tool("sub")]
        async with FakeMcp(tools=listed, modern=True, page_size=1) as fake, client(fake) as server:
            await server.call("add", {"region": "eu"}, repeatable=False)
            assert [one["name"] for one in await server.list_tools()] == ["add", "sub"]
            asked = fake.asked("tools/call")[0].headers
            assert (asked["mcp-protocol-version"], asked["mcp-name"]) == (MODERN, "add")
            assert asked["mcp-param-region"] == "eu"
            fake.fail("tools/call", cut(after=True))
            assert (await fault_of(server)).ran == "unknown"

    run(scenario())


# --- the way out ----------------------------------------------------------------------------------
def test_only_checked_addresses_are_connected_to(run: Run) -> None:
    """Lost if red: a tenant's server whose name leads into our network, or to metadata."""
    asked: list[tuple[str, int]] = []

    async def lookup(host: str, port: int) -> list[str]:
        asked.append((host, port))
        if host.startswith("no"):
            raise OSError("no such name")
        return ["127.0.0.1"]

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake:
            told = set()
            for origin in (
                *("https://tools.example", "https://nowhere.example"),
                *("https://127.0.0.1", "http://tools.example"),
            ):
                url = f"{origin}:{fake.port}/mcp"
                async with client(fake, url=url, guard=Guard([], lookup=lookup)) as server:
                    fault = await fault_of(server)
                    told.add((fault.told, fault.ran))
            # in the same words: which names there are in our network is not told either
            assert told == {("The MCP server cannot be reached at a public address.", "no")}
            assert asked == [("tools.example", fake.port), ("nowhere.example", fake.port)]
            assert fake.seen == []
            # let through, it is the guard's address that is connected to
            let_through = Guard(["tools.example"], lookup=lookup)
            url = f"http://tools.example:{fake.port}/mcp"
            async with client(fake, url=url, guard=let_through) as server:
                await server.call("add", {}, repeatable=False)
            assert {one.headers["host"] for one in fake.seen} == {f"tools.example:{fake.port}"}

    run(scenario())


def test_what_is_sent_on_the_side_says_nothing_of_the_question(run: Run) -> None:
    """Lost if red: a call made twice, since an answer to a ping came too late for its session."""

    async def scenario() -> None:
        async with FakeMcp() as fake, aiohttp.ClientSession() as http:
            wire = Wire(http, guard=LOCAL, headers={})
            asked = Exchange(fault=LOST)
            EXCHANGE.set(asked)
            headers = {"content-type": "application/json", "mcp-session-id": "gone"}
            for message in (
                {"jsonrpc": "2.0", "id": "s0", "result": {}},
                {"jsonrpc": "2.0", "method": "notifications/cancelled"},
            ):
                sent = httpx2.Request("POST", fake.url, json=message, headers=headers)
                assert (await wire.handle_async_request(sent)).status_code == 404
                assert asked.fault == LOST
            question = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
            sent = httpx2.Request("POST", fake.url, json=question, headers=headers)
            await wire.handle_async_request(sent)
            assert asked.fault == EXPIRED

    run(scenario())


def test_redirect_within_the_server_is_followed(run: Run) -> None:
    """Lost if red: servers that want a slash more or less at the end of their URL."""

    async def scenario() -> None:
        async with FakeMcp(tools=[tool("add")]) as fake, client(fake) as server:
            fake.fail("initialize", status(307, Location="/mcp"))
            fake.fail("tools/call", status(308, Location=fake.url))
            await server.call("add", {}, repeatable=False)
            elsewhere = f"http://localhost:{fake.port}/mcp"
            fake.fail("tools/call", status(307, Location=elsewhere))
            assert (await fault_of(server)).ran == "no"
            assert len(fake.ran) == 1

    run(scenario())


def test_certificate_must_be_for_the_name_in_the_url(tmp_path: Path) -> None:
    """Lost if red: secrets in headers, to whoever answers at the address that was connected to."""
    certificate = make_certificate(tmp_path, "tools.example")
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    served.load_cert_chain(certificate)
    program = """if True:
        import asyncio, sys
        from chalicelib.outbound import Guard
        from chalicelib.tools.mcp_client import Address, McpFailed, McpServer

        async def here(host, port):
            return ["127.0.0.1"]

        async def main():
            for host in ("tools.example", "other.example"):
                guard = Guard([host], lookup=here)
                url = f"https://{host}:{sys.argv[1]}/mcp"
                server = McpServer(Address(url=url, headers={"Authorization": host}, guard=guard))
                try:
                    print((await server.call("add", {}, repeatable=False)).content[0].text)
                except McpFailed as exc:
                    print(exc.fault.told, exc.fault.ran)
                await server.close()

        asyncio.run(main())
    """

    async def scenario() -> tuple[str, set[str]]:
        async with FakeMcp(tools=[tool("add")], tls=served) as fake:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-c", program, str(fake.port)),
                env={**os.environ, "SSL_CERT_FILE": str(certificate)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            out, _ = await process.communicate()
            return out.decode(), {one.headers["authorization"] for one in fake.seen}

    said, reached = asyncio.run(scenario())
    assert said.splitlines() == ["add done", "The MCP server's certificate is not accepted. no"]
    assert reached == {"tools.example"}


def make_certificate(folder: Path, name: str) -> Path:
    """A certificate for this name that signs itself, and its key, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = folder / f"{name}.pem"
    path.write_bytes(
        made.public_bytes(Encoding.PEM)
        + key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return path


def test_log_holds_nothing_that_a_server_or_a_header_says(
    run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: secrets, and what people's tools answer, in our logs for a month."""
    caplog.set_level(logging.INFO)

    async def scenario() -> None:
        headers = {"Authorization": "Bearer s3cret"}
        async with FakeMcp(tools=[tool("add")], sse=True, auth="Bearer s3cret") as fake:
            async with client(fake, headers=headers) as server:
                fake.results["add"] = text("private-answer")
                await server.call("add", {"a": "private-argument"}, repeatable=False)
                for fault in (
                    error(-32603, "private-error"),
                    raw(b'{"private": "broken'),
                    raw(b'{"jsonrpc": "2.0", "private": 1}'),
                    raw(b"event: message\ndata: {private\n\n", "text/event-stream"),
                    events({"jsonrpc": "2.0", "method": "private"}, reset=True),
                    cut(after=False),
                ):
                    fake.fail("tools/call", fault)
                    await fault_of(server)
            fake.auth = "Bearer other"
            async with client(fake, headers=headers) as server:
                await fault_of(server)

    run(scenario())
    assert len(caplog.records) == 0


def test_tools_own_headers_go_along_and_the_protocols_stay(run: Run) -> None:
    """Lost if red: a key that is not sent; or a header of a tenant's that breaks the protocol."""

    async def scenario() -> None:
        headers = {"Authorization": "Bearer x", "Accept": "text/html", "mcp-session-id": "mine"}
        async with FakeMcp(tools=[tool("add")], auth="Bearer x") as fake:
            async with client(fake, headers=headers) as server:
                await server.call("add", {}, repeatable=False)
            call = fake.asked("tools/call")[0].headers
            assert call["accept"] == "application/json, text/event-stream"
            assert call["mcp-session-id"] == "session-1"
            assert (call["accept-encoding"], call["user-agent"]) == ("identity", "Palimpsest")

    run(scenario())
