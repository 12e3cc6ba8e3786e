"""Conversations through the API, one turn after another."""

import time
from dataclasses import dataclass

import orjson
from benchlib.wire import Client, Refused
from memorybench.words import Language


@dataclass(frozen=True, kw_only=True)
class Took:
    """A turn as its caller saw it: from the request to the stream's end, and the prompt's size."""

    ms: float
    tokens: int


class Conversation:
    """A session, and what is said in it: the same for the same seed."""

    def __init__(self, client: Client, session_id: str, seed: int) -> None:
        self.id = session_id
        self._client, self._language, self._turn = client, Language(seed), 0

    @classmethod
    async def begin(cls, client: Client, agent: str, user: str, *, seed: int = 1) -> "Conversation":
        """A new session of this agent and user."""
        body = {"agentName": agent, "userId": user}
        made = (await client.call("POST", "/v1/sessions", body)).json(201)
        return cls(client, str(made["id"]), seed)

    async def turn(self) -> Took:
        """Say the next thing and read the reply to its end; raises Refused."""
        self._turn += 1
        told: list[tuple[bytes, bytes]] = []
        began = time.perf_counter()
        exchange = await self._client.start(
            "POST",
            f"/v1/sessions/{self.id}/messages",
            body={"content": self._say()},
            sink=lambda name, data, _: told.append((name, data)),
        )
        await exchange.ended
        ms = (time.perf_counter() - began) * 1e3
        if not told or told[-1][0] != b"message_completed":
            raise Refused(f"turn {self._turn} ended with {told[-1:]}")
        return Took(ms=ms, tokens=orjson.loads(told[-1][1])["usage"]["tokensIn"])

    def question(self) -> str:
        """Something to ask, each time another."""
        return f"What did we say about {' '.join(self._language.draw(4))}?"

    def _say(self) -> str:
        text = " ".join(self._language.draw(25)).capitalize()
        if self._turn % 40 == 0:
            text = f"We decided to use {text}"
        return f"{text}{'?' if self._turn % 15 == 0 else '.'}"


async def define_agent(client: Client, name: str) -> str:
    """A plain agent whose sessions are compacted: its name."""
    body = {"name": name, "context": "compact"}
    (await client.call("POST", "/v1/agents", body)).json(201)
    return name
