"""One streamed turn, over either of the server's two ways or straight from the provider."""

import asyncio
import re
import time
from typing import NamedTuple, Protocol

import orjson

from benchlib.wire import Client, Exchange, Refused

STAMPED = re.compile(r"t(\d+)@(\d+) ")


class Cadence(NamedTuple):
    """The provider's: milliseconds to the first token, milliseconds between, and how many."""

    first_ms: float
    inter_ms: float
    tokens: int

    @property
    def turn_ms(self) -> float:
        """How long the provider takes over a turn."""
        return self.first_ms + self.inter_ms * max(0, self.tokens - 1)

    def __str__(self) -> str:
        return f"{self.first_ms:g}-{self.inter_ms:g}-{self.tokens}"


class Turn:
    """What arrived of one turn: how late each token was, in milliseconds, and what is wrong."""

    def __init__(self) -> None:
        self.began = time.monotonic_ns()
        self.late_ms: list[float] = []
        self.first_ms: float | None = None  # from the request to the first token
        self.took_ms = 0.0
        self.deltas = 0
        self.seen: list[int] = []  # token numbers in order of arrival
        self.text = ""
        self.whole: str | None = None  # the text the server gave at the end
        self.error: str | None = None
        self._last_seq = 0
        self._read = 0  # characters of the text already searched for tokens

    def delta(self, piece: str, at: int, seq: int | None = None) -> None:
        """Take a piece of text received at `at` (monotonic ns) under its number in the turn."""
        if not piece:
            return
        self.deltas += 1
        if seq is not None:
            if seq != self._last_seq + 1:
                self.error = self.error or f"seq {seq} after {self._last_seq}"
            self._last_seq = seq
        self.text += piece
        for token in STAMPED.finditer(self.text, self._read):
            self._read = token.end()
            self.seen.append(int(token[1]))
            self.late_ms.append((at - int(token[2])) / 1e6)
        if self.first_ms is None and self.seen:
            self.first_ms = (at - self.began) / 1e6

    def end(self, whole: str) -> None:
        self.took_ms = (time.monotonic_ns() - self.began) / 1e6
        self.whole = whole

    def wrong(self, tokens: int) -> str | None:
        """What a turn of so many tokens lacks; None if it is complete."""
        if self.error is not None:
            return self.error
        if self.seen != list(range(tokens)):
            return f"{len(set(self.seen))} of {tokens} tokens, or not in order"
        if self.whole != self.text:
            return "the final text is not the text of the deltas"
        return None


class Session(Protocol):
    """A conversation that turns can be run on, one at a time."""

    async def turn(self, content: str, turn: Turn) -> None:
        """Run one; raises Refused, or OSError when the connection fails."""

    def close(self) -> None: ...


class ProviderSession:
    """The baseline: the provider read directly, the history kept by the client."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._messages: list[dict[str, str]] = []

    async def turn(self, content: str, turn: Turn) -> None:
        self._messages.append({"role": "user", "content": content})
        finished = False

        def sink(_: bytes, data: bytes, at: int) -> None:
            nonlocal finished
            if data == b"[DONE]":
                finished = True
                return
            for choice in orjson.loads(data)["choices"]:
                turn.delta(choice["delta"].get("content", ""), at)

        body = {
            "model": "bench",
            "messages": self._messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        exchange = await self._client.start("POST", "/chat/completions", body=body, sink=sink)
        answer = await exchange.ended
        if not finished:
            raise Refused(f"{answer.status} {answer.body[:200]!r}")
        turn.end(turn.text)
        self._messages.append({"role": "assistant", "content": turn.text})

    def close(self) -> None:
        self._messages.clear()


class ServerSession:
    """A session of the server; subclasses say by which way a turn streams."""

    def __init__(self, client: Client, session_id: str) -> None:
        self._client = client
        self.id = session_id
        self._turn: Turn | None = None
        self._over: asyncio.Future[None] | None = None

    def _sink(self, name: bytes, data: bytes, at: int) -> None:
        turn, over = self._turn, self._over
        if turn is None or over is None or over.done():
            return
        if name == b"message_delta":
            event = orjson.loads(data)
            turn.delta(event["delta"], at, event["seq"])
        elif name == b"message_completed":
            turn.end(orjson.loads(data)["text"])
            over.set_result(None)
        elif name == b"message_error":
            over.set_exception(Refused(data[:200].decode(errors="replace")))

    def _begin(self, turn: Turn) -> asyncio.Future[None]:
        self._turn = turn
        self._over = asyncio.get_running_loop().create_future()
        return self._over

    def _ended_early(self, exchange: Exchange) -> None:
        def ended(_: object) -> None:
            if self._over is not None and not self._over.done():
                self._over.set_exception(Refused("the stream ended before the turn"))

        exchange.ended.add_done_callback(ended)

    def close(self) -> None:
        self._turn = self._over = None


class InlineSession(ServerSession):
    """The answer to the POST is the stream of its turn."""

    async def turn(self, content: str, turn: Turn) -> None:
        over = self._begin(turn)
        exchange = await self._client.start(
            "POST", f"/v1/sessions/{self.id}/messages", body={"content": content}, sink=self._sink
        )
        if await exchange.opened != 200:
            raise Refused(f"POST gave {(await exchange.ended)[:2]}")
        self._ended_early(exchange)
        await over
        await exchange.ended  # so that the connection is free for the next turn


class EventsSession(ServerSession):
    """One events stream stays open, and messages are posted beside it."""

    _stream: Exchange | None = None

    async def listen(self) -> None:
        """Open the events stream."""
        path = f"/v1/sessions/{self.id}/events"
        self._stream = await self._client.start("GET", path, sink=self._sink)
        if await asyncio.wait_for(self._stream.opened, 30) != 200:
            raise Refused(f"GET events gave {(await self._stream.ended)[:2]}")
        self._ended_early(self._stream)

    @property
    def listening(self) -> bool:
        return self._stream is not None and not self._stream.ended.done()

    async def turn(self, content: str, turn: Turn) -> None:
        if not self.listening:
            await self.listen()
        turn.began = time.monotonic_ns()
        over = self._begin(turn)
        answer = await self._client.call(
            "POST", f"/v1/sessions/{self.id}/messages", {"content": content}
        )
        answer.json(202)
        await over

    def close(self) -> None:
        super().close()
        if self._stream is not None:
            self._stream.close()


WAYS = ("events", "inline")


async def new_session(client: Client, way: str) -> Session:
    """Open a session for `baseline`, `events` or `inline`."""
    if way == "baseline":
        return ProviderSession(client)
    answer = await client.call("POST", "/v1/sessions", {"agentName": "bench"})
    session_id = str(answer.json(201)["id"])
    if way == "inline":
        return InlineSession(client, session_id)
    session = EventsSession(client, session_id)
    await session.listen()
    return session


async def run_turn(session: Session, content: str, seconds: float) -> Turn:
    """Run a turn and record what went wrong with it rather than raise."""
    turn = Turn()
    try:
        await asyncio.wait_for(session.turn(content, turn), seconds)
    except TimeoutError:
        turn.error = f"no end within {seconds:g} s"
    except (Refused, OSError, KeyError, ValueError) as exc:
        turn.error = f"{type(exc).__name__}: {exc}"
    return turn
