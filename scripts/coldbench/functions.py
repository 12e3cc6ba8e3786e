"""Each function with the first real work it is given, and the hello-world beside it."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from chalicelib.sessions.lifecycle import NewMessage
from coldbench.place import Place
from coldbench.starts import Function
from tests.fakes.openai_server import Reply
from tests.support.doors import proxy_event

HELLO = "hello world"
API = "APIHandler"
STREAM = "Stream"

_MANAGED = 'exec "$RIE" $ADDRESSES "$PYTHON" -m awslambdaric "$HANDLER"'
# Lambda hands the wrapper the command it would run otherwise
_WRAPPED = 'exec "$RIE" $ADDRESSES chalicelib/stream/bootstrap "$PYTHON" /var/runtime/bootstrap.py'
# it sends turns to a queue, and here none
_QUEUED = {"PAL_TURNS_QUEUE_URL": "https://sqs.eu-central-1.amazonaws.com/123456789012/none"}
_MEMORY = {"PAL_MEMORY_DISTILL": "on"}
_SCHEDULED = {
    "version": "0",
    "id": "1",
    "account": "123456789012",
    "region": "eu-central-1",
    "time": "2026-01-01T00:00:00Z",
    "source": "aws.events",
    "detail-type": "Scheduled Event",
    "resources": [],
    "detail": {},
}


def functions(place: Place) -> list[Function]:
    """All of the package; those that stand for two uses of one function stand there twice."""
    work = _Work(place)
    made = [
        _managed(place, API, work.health, b'\\"ok\\"', name=f"{API} /healthz"),
        _managed(
            place,
            API,
            work.sessions,
            b'"statusCode": 200',
            name=f"{API} GET /v1/sessions",
            **_QUEUED,
        ),
        _streaming(place, work.refused, b'"unauthorized"', name=f"{STREAM} refusing"),
        _streaming(place, work.turn, b"message_completed", name=f"{STREAM} a turn"),
        _managed(place, "TurnWorker", work.queued_turn, b"null"),
        _managed(place, "Sweep", lambda: _SCHEDULED, b'"turns"'),
        _managed(place, "MemoryTick", lambda: _SCHEDULED, b'"tenants"', **_MEMORY),
        _managed(place, "MemoryWorker", work.slice, b"null", **_MEMORY),
        _managed(place, "MemoryIndex", lambda: _SCHEDULED, b'"vectors"'),
        _managed(place, "Migrate", dict, b'"applied"'),
    ]
    return [one for one in made if one.name.split()[0] in place.handlers]


def hello(place: Place) -> Function:
    """The hello-world, in the same Python under the same client."""
    folder = Path(__file__).parent
    return Function(
        name=HELLO,
        script=_MANAGED,
        folder=folder,
        env={
            **place.unpacked.environment(),
            "PYTHONPATH": f"{folder}:{place.runtime}",
            "PYTHON": str(place.unpacked.python),
            "HANDLER": "hello.handler",
        },
        event=dict,
        expects=b"hello",
    )


def _managed(
    place: Place,
    function: str,
    event: Callable[[], Any],
    expects: bytes,
    *,
    name: str = "",
    **more: str,
) -> Function:
    env = _environment(place) | more
    env["PYTHONPATH"] += f":{place.runtime}"
    env["HANDLER"] = place.handlers.get(function, "")
    return Function(
        name=name or function,
        script=_MANAGED,
        folder=place.unpacked.task,
        env=env,
        event=event,
        expects=expects,
    )


def _streaming(place: Place, event: Callable[[], Any], expects: bytes, *, name: str) -> Function:
    env = _environment(place)
    env["PYTHONPATH"] = str(place.unpacked.packages)  # the wrapper itself puts the code on the path
    return Function(
        name=name,
        script=_WRAPPED,
        folder=place.unpacked.task,
        env=env,
        event=event,
        expects=expects,
    )


def _environment(place: Place) -> dict[str, str]:
    return place.unpacked.environment(
        LAMBDA_TASK_ROOT=str(place.unpacked.task),  # without it the X-Ray SDK is another one
        PYTHON=str(place.unpacked.python),
        PAL_DATABASE_URL=place.stack.database.app,
        PAL_DATABASE_OWNER_URL=place.stack.database.owner,
        PAL_PROVIDERS="openai:fake",
        OPENAI_BASE_URL=place.provider.base_url,
        OPENAI_API_KEY="sk-fake",
    )


class _Work:
    """Makes the events that give a function something to do."""

    def __init__(self, place: Place) -> None:
        self._stack, self._provider = place.stack, place.provider
        self._sessions = self._stack.node.services.sessions
        self._caller = self._stack.caller
        self._session = self._new_session()

    def health(self) -> dict[str, Any]:
        return self._routed("/healthz")

    def sessions(self) -> dict[str, Any]:
        return self._routed("/v1/sessions")

    def refused(self) -> dict[str, Any]:
        """A reader whose key is looked up, and is none: a stream itself would stay open."""
        headers = {"authorization": "Bearer pal_" + "0" * 40, "accept": "text/event-stream"}
        return proxy_event("2.0", "GET", f"/v1/sessions/{self._session}/events", headers, None)

    def turn(self) -> dict[str, Any]:
        """A message of a new session, its whole answer streamed."""
        headers = {
            "authorization": f"Bearer {self._stack.key}",
            "accept": "text/event-stream",
            "content-type": "application/json",
        }
        path = f"/v1/sessions/{self._new_session()}/messages"
        return proxy_event("2.0", "POST", path, headers, json.dumps({"content": "Hello!"}).encode())

    def queued_turn(self) -> dict[str, Any]:
        """What the queue would bring of a message that was just accepted."""
        session = self._new_session()
        self._sessions.dispatch = _leave
        self._stack.node.run(
            self._sessions.post(self._caller, session, NewMessage(content="Hello!"))
        )
        return _message({"tenantId": self._stack.tenant, "sessionId": session})

    def slice(self) -> dict[str, Any]:
        """A tenant of whom something new has come in."""
        self._provider.script(Reply(pieces=['{"distillates": []}']))
        event = {
            "channel": "chat",
            "kind": "message",
            "content": f"I moved to Bergen, {time.time()}.",
            "occurredAt": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        }
        told = self._stack.http().call("POST", "/v1/memory/events", {"events": [event]})
        assert told.status == 200, told.body
        return _message({"tenantId": self._stack.tenant})

    def _new_session(self) -> str:
        made = self._stack.node.run(self._sessions.create(self._caller, agent_name="guide"))
        return str(made["id"])

    def _routed(self, path: str) -> dict[str, Any]:
        headers = {"authorization": f"Bearer {self._stack.key}", "accept": "application/json"}
        event = proxy_event("1.0", "GET", path, headers, None)
        event["requestContext"]["resourcePath"] = path
        event["pathParameters"] = {}
        return event


def _message(body: dict[str, str]) -> dict[str, Any]:
    record = {
        "messageId": "1",
        "receiptHandle": "1",
        "body": json.dumps(body),
        "attributes": {},
        "messageAttributes": {},
        "eventSource": "aws:sqs",
        "eventSourceARN": "arn:aws:sqs:eu-central-1:123456789012:pal-dev",
        "awsRegion": "eu-central-1",
    }
    return {"Records": [record]}


async def _leave(tenant_id: str, session_id: str) -> None:
    """Dispatch to nobody, as a queue does whose worker is another process."""
