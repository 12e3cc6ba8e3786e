"""The routes that stream, on the loop: events, messages in both their forms, distillation.

One function, `respond`, takes a `Call` and yields a `Streamed`. The gateway calls it for these
routes, the streaming Lambda for each of its invocations, and Chalice's views of the same routes
collect what it yields.
"""

import logging
import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

import orjson

from chalicelib import config, telemetry
from chalicelib.api.call import Answer, Call, error_answer, no_path
from chalicelib.api.cors import cors_headers, preflight_headers
from chalicelib.api.endpoint import OPERATIONS, REPLAYED, Operation, admit, serve
from chalicelib.auth import Principal
from chalicelib.errors import InvalidField, MethodNotAllowed, NotFound, PalError
from chalicelib.services import Services, services
from chalicelib.sessions.naming import require_session_id
from chalicelib.sessions.reader import ENDS, Position, Reader
from chalicelib.sessions.resume import enter_stream, leave_stream, open_events, replay_turn
from chalicelib.sessions.rows import Watch
from chalicelib.stream import sse
from chalicelib.stream.response import Streamed

_log = logging.getLogger(__name__)

_SESSION: Final = re.compile(r"/v1/sessions/([^/]+)/(events|messages)")
COLLECTED_SECONDS: Final = 25.0


async def respond(call: Call, *, collected: bool = False) -> Streamed:
    """The answer to a call of a streaming route; never raises.

    `collected` is for a way in that cannot stream (API Lambda, test client): an event stream then
    ends as soon as no turn is queued or running, after 25 s at most.
    """
    telemetry.bind(request_id=call.request_id)
    origin, allowed = call.headers.get("origin"), config.settings().cors_origins
    if call.method == "OPTIONS":
        # not an empty 204: function URLs are reported to hang on streams without a byte
        return _whole(Answer(body={}), call, preflight_headers(origin, allowed))
    cors = cors_headers(origin, allowed)
    answer: Answer | Streamed
    try:
        answer = await _route(call, await services(), collected=collected)
    except PalError as exc:
        answer = error_answer(exc, call.request_id)
    except Exception:
        _log.exception("a stream broke", extra={"action": "view_broke"})
        answer = error_answer(PalError("Something went wrong on our side."), call.request_id)
    if isinstance(answer, Answer):
        return _whole(answer, call, cors)
    answer.headers += [("X-Request-Id", call.request_id), *cors.items()]
    return answer


def streams(method: str, path: str) -> bool:
    """Whether this handler, and not the Chalice app, serves the call."""
    if method == "POST" and path == "/v1/memory/distill":
        return True
    found = _SESSION.fullmatch(path)
    return found is not None and (method, found[2]) in (("GET", "events"), ("POST", "messages"))


async def _route(call: Call, ready: Services, *, collected: bool) -> Answer | Streamed:
    if call.path == "/v1/memory/distill":
        return await serve(_distill(), call) if call.method == "POST" else _refuse("POST")
    found = _SESSION.fullmatch(call.path)
    if found is None:
        raise no_path()
    call = replace(call, params={"session_id": unquote(found[1])})
    if found[2] == "events":
        if call.method != "GET":
            return _refuse("GET")
        return await _events(call, ready, collected=collected)
    if call.method != "POST":
        return _refuse("POST")
    if "text/event-stream" in call.headers.get("accept", "").lower():
        return await _post_and_stream(call, ready, collected=collected)
    return await serve(_post(), call)


# the models of all bodies are a third of a cold start, and reading events takes none
def _post() -> Operation:
    from chalicelib.api.sessions import post_message

    return OPERATIONS[post_message.__name__]


def _distill() -> Operation:
    from chalicelib.api.distillates import distill

    return OPERATIONS[distill.__name__]


def _refuse(allowed: str) -> Answer:
    raise MethodNotAllowed(f"This path takes {allowed}.", headers={"Allow": allowed})


async def _events(call: Call, ready: Services, *, collected: bool) -> Streamed:
    call.require_size()
    token = call.query.get("token")
    if token is not None:
        caller = await ready.auth.stream_token(token)
    else:
        caller = await ready.auth.bearer(call.headers.get("authorization"))
        caller.require("sessions")
    session_id = require_session_id(call.params["session_id"])
    if caller.only_session not in (None, session_id):
        raise NotFound("There is no such session.")
    telemetry.bind(tenant_id=caller.tenant_id, session_id=session_id)
    stream_id = await _enter(ready, caller) if ready.streams_per_key else None
    try:
        reader, watch = await open_events(
            ready.db, ready.hub, caller, session_id, after=_last_id(call)
        )
    except BaseException:
        await leave_stream(ready.db, caller, stream_id)
        raise
    reader.key_id, reader.stream_id = caller.key_id, stream_id
    if ready.settings.on_lambda:
        reader.limit(idle=ready.settings.stream_idle, whole=ready.settings.stream_max)
    hello = orjson.dumps({"sessionId": session_id, "status": watch.status}).decode()
    reader.greet("connected", hello)
    if collected:
        reader.limit(idle=COLLECTED_SECONDS, whole=COLLECTED_SECONDS)
    pieces = _until_quiet(ready, reader, watch) if collected else _follow(ready, reader)
    body = _Body(pieces, partial(_let_go, ready, caller, reader, stream_id))
    return Streamed(status=200, headers=list(sse.HEADERS), body=body)


def _last_id(call: Call) -> str | None:
    if header := call.headers.get("last-event-id"):
        return header
    after = call.query.get("after")
    if after is not None:
        try:
            Position.parse(after)
        except InvalidField as exc:
            raise InvalidField.of("after", "is not an id of this event stream") from exc
    return after


class _Body:
    """A stream's pieces, and what is to be let go of at their end, even if no one began them.

    A generator that was never begun runs nothing when it is closed.
    """

    def __init__(
        self, pieces: AsyncGenerator[bytes, None], let_go: Callable[[], Awaitable[None]]
    ) -> None:
        self._pieces, self._let_go = pieces, let_go

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    def __anext__(self) -> Awaitable[bytes]:
        return self._pieces.__anext__()

    async def aclose(self) -> None:
        """End the pieces, then let go."""
        try:
            await self._pieces.aclose()
        finally:
            await self._let_go()


async def _follow(ready: Services, reader: Reader) -> AsyncGenerator[bytes, None]:
    yield sse.RETRY
    async with aclosing(ready.hub.events(reader)) as batches:
        async for batch in batches:
            yield sse.encode(batch)
    yield sse.RETRY


async def _until_quiet(
    ready: Services, reader: Reader, watch: Watch
) -> AsyncGenerator[bytes, None]:
    open_turns = {watch.running_turn, watch.queued_turn} - {None}
    yield sse.RETRY
    async with aclosing(ready.hub.events(reader)) as batches:
        async for batch in batches:
            yield sse.encode(batch)
            for event in batch:
                if event.name == "user_message":
                    open_turns.add(orjson.loads(event.data)["turnId"])
                elif event.name in ENDS:
                    open_turns.discard(orjson.loads(event.data)["turnId"])
            if reader.attached and not open_turns:
                return


async def _post_and_stream(call: Call, ready: Services, *, collected: bool) -> Streamed:
    from chalicelib.api.sessions import new_message

    request = await admit(_post(), call)
    session_id = require_session_id(call.params["session_id"])
    telemetry.bind(session_id=session_id)
    headers = list(sse.HEADERS)
    reader, answer = await ready.sessions.post_and_follow(
        request.caller, session_id, new_message(request.body), once=request.once
    )
    if reader is None:
        reader = await replay_turn(
            ready.db, ready.hub, request.caller, session_id, turn_id=answer["turnId"]
        )
        headers += REPLAYED.items()
    reader.key_id = request.caller.key_id
    if collected:
        reader.limit(idle=COLLECTED_SECONDS, whole=COLLECTED_SECONDS)
    return Streamed(
        status=200,
        headers=headers,
        body=_Body(_follow(ready, reader), partial(_let_go, ready, request.caller, reader, None)),
        # a frozen function does no work, so Lambda's next invocation waits for this turn's end
        after=ready.engine.wait_idle() if ready.settings.on_lambda else None,
    )


async def _enter(ready: Services, caller: Principal) -> str:
    stream_id = secrets.token_hex(13)
    await enter_stream(
        ready.db,
        caller,
        stream_id=stream_id,
        limit=ready.streams_per_key,
    )
    return stream_id


async def _let_go(
    ready: Services, caller: Principal, reader: Reader, stream_id: str | None
) -> None:
    ready.hub.drop(reader)
    await leave_stream(ready.db, caller, stream_id)


def _whole(answer: Answer, call: Call, cors: dict[str, str]) -> Streamed:
    async def body() -> AsyncIterator[bytes]:
        if answer.body is not None:
            yield answer.text().encode()

    headers: dict[str, Any] = {"X-Request-Id": call.request_id, **cors, **answer.headers}
    if answer.body is not None:
        headers["Content-Type"] = "application/json"
    return Streamed(status=answer.status, headers=list(headers.items()), body=body())
