"""The packaged stream function as Lambda runs it: its wrapper, its loop, its handler, one process.

AWS's emulator starts the unpacked code through the wrapper, in a Python that can import nothing
but that code, its layer and the standard library, on a real database and before a fake provider.
"""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import psutil
import pytest

from tests.fakes.openai_server import FakeOpenAI
from tests.fakes.openai_server import Reply as Said
from tests.support.answers import refused
from tests.support.doors import CollectedStream, proxy_event
from tests.support.emulator import Emulator, emulator
from tests.support.http import Reply, text_of
from tests.support.package import Unpacked
from tests.support.stack import Stack

# the first test that needs the package may have to make it
pytestmark = pytest.mark.timeout(600)

# Lambda hands the wrapper the command it would run otherwise
COMMAND = 'exec "$RIE" $ADDRESSES "$WRAPPER" "$PYTHON" /var/runtime/bootstrap.py'


@dataclass(frozen=True, kw_only=True)
class Function:
    """The deployed function, invoked as the two front doors invoke it."""

    rie: Emulator
    key: str

    def call(
        self,
        version: str,
        method: str,
        path: str,
        body: Any = None,
        *,
        key: str | None = None,
        accept: str = "*/*",
    ) -> Reply:
        """One invocation with a function URL's event ("2.0") or a REST API's ("1.0")."""
        headers = {"authorization": f"Bearer {key or self.key}", "accept": accept}
        if body is not None:
            headers["content-type"] = "application/json"
        payload = None if body is None else json.dumps(body).encode()
        event = proxy_event(version, method, path, headers, payload)
        prelude, content = self.rie.invoke(event).content.split(bytes(8), 1)
        head = json.loads(prelude)
        assert set(head) == {"statusCode", "headers", "cookies"}
        return Reply(status=head["statusCode"], headers=head["headers"], body=content)

    def stream(self, version: str, method: str, path: str, body: Any = None) -> CollectedStream:
        """One invocation that is answered by events."""
        reply = self.call(version, method, path, body, accept="text/event-stream")
        assert reply.status == 200, reply.body
        assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
        return CollectedStream(reply)

    def process(self) -> psutil.Process:
        """The one process that has answered."""
        _, *started = self.rie.processes()
        (process,) = [one for one in started if "chalicelib.stream.runtime" in one.cmdline()]
        return process


@pytest.fixture
def function(unpacked: Unpacked, stack: Stack, provider: FakeOpenAI) -> Iterator[Function]:
    """The stream function with the stack's database and provider; its streams end soon."""
    env = unpacked.environment(
        WRAPPER=str(unpacked.task / "chalicelib/stream/bootstrap"),
        PYTHON=str(unpacked.python),
        PYTHONPATH=str(unpacked.packages),  # the wrapper itself puts the code on the path
        LAMBDA_TASK_ROOT=str(unpacked.task),
        PAL_DATABASE_URL=stack.database.app,
        PAL_PROVIDERS="openai:fake",
        OPENAI_BASE_URL=provider.base_url,
        OPENAI_API_KEY="sk-fake",
        PAL_STREAM_IDLE="1s",
    )
    with emulator(COMMAND, env, cwd=unpacked.task) as rie:
        yield Function(rie=rie, key=stack.key)


def new_session(stack: Stack) -> str:
    """A fresh session's id: sessions are made through the API function, not this one."""
    return str(stack.http().call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"])


def turns(stack: Stack) -> list[tuple[str, str]]:
    """Every turn as it lies in the database: its status and its reply."""
    return stack.database.rows(
        "SELECT t.status, m.content FROM pal.turns t "
        "LEFT JOIN pal.messages m ON m.turn_id = t.id AND m.role = 'assistant' ORDER BY t.id"
    )


def test_packaged_function_serves_both_front_doors_from_one_process(
    function: Function, stack: Stack, unpacked: Unpacked
) -> None:
    """Lost if red: the deployed stream. What the suite proves of the checkout would stay there."""
    session = new_session(stack)
    messages, feed = f"/v1/sessions/{session}/messages", f"/v1/sessions/{session}/events"

    first = function.stream("2.0", "POST", messages, {"content": "Hello 你好 🌍"}).rest()
    process = function.process()
    assert [event.name for event in first[:2]] == ["user_message", "turn_started"]
    assert first[-1].name == "message_completed"
    assert text_of(first) == first[-1].data["text"] == "echo: Hello 你好 🌍"

    refused(function.call("2.0", "POST", messages, {"content": "x"}, key="pal_no"), 401)
    # Lambda freezes the function after an answer: by the next one, the turn before it is stored
    assert turns(stack) == [("completed", "echo: Hello 你好 🌍")]

    replayed = function.stream("1.0", "GET", f"{feed}?after=0").rest()
    assert replayed[0].name == "connected"
    assert replayed[1].name == "user_message"
    assert replayed[-1] == first[-1]
    assert text_of(replayed) == text_of(first)

    posted = function.call("1.0", "POST", messages, {"content": "again"})
    assert (posted.status, posted.headers["content-type"]) == (202, "application/json")
    resumed = function.stream("2.0", "GET", f"{feed}?after={first[-1].id}").rest()
    assert resumed[-1].name == "message_completed"
    assert resumed[-1].data["turnId"] == posted.json["turnId"]
    assert text_of(resumed) == "echo: again"

    refused(function.call("1.0", "POST", messages, {}), 422, field="content")
    preflight = function.call("2.0", "OPTIONS", messages)
    assert (preflight.status, preflight.body) == (200, b"{}")  # a stream needs a byte

    assert function.process() == process
    assert process.cwd() == str(unpacked.task)
    mapped = {one.path for one in process.memory_maps() if "-packages/" in one.path}
    assert mapped
    assert {path for path in mapped if not path.startswith(str(unpacked.layer))} == set()


def test_packaged_function_runs_what_came_meanwhile_before_its_next_invocation(
    function: Function, stack: Stack, provider: FakeOpenAI
) -> None:
    """Lost if red: the reply to a message that came in mid-turn, in a function that is frozen."""
    session = new_session(stack)
    messages = f"/v1/sessions/{session}/messages"
    first, second = Said(pieces=["one"], hold_at=0), Said(pieces=["two"], first_ms=500)
    provider.script(first, second)
    with ThreadPoolExecutor() as pool:
        streamed = pool.submit(function.stream, "2.0", "POST", messages, {"content": "a"})
        assert first.held.wait(15)
        assert stack.http().call("POST", messages, {"content": "b"}).status == 202
        first.gate.set()
        assert text_of(streamed.result().rest()) == "one"
    refused(function.call("2.0", "POST", messages, {"content": "x"}, key="pal_no"), 401)
    assert turns(stack) == [("completed", "one"), ("completed", "two")]
