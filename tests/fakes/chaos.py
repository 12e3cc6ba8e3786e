"""Three vendors and the API behind some tools, which fail at random and remember what they did.

    with Chaos(seed=7) as chaos:
        ...                 # start the system with `chaos.environ()`, post messages tagged `<m1-1>`
        chaos.served        # each request to a vendor, and what it got
        chaos.ran           # each tool call that arrived

What goes wrong depends on the seed, the message's tag, the vendor and which try it is, and on
nothing else: the same seed is the same weather, however the threads take turns. A message's number
within its session says who has a bad day, so that breakers open as well. Each answer says whose it
is and carries a seal over its words, so that half of one, or two halves, cannot pass for a whole.
"""

import hashlib
import random
import re
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, Self
from urllib.parse import parse_qs, urlsplit

import orjson
from aiohttp import web

from tests.fakes import anthropic_server, openai_server
from tests.fakes.anthropic_server import FakeAnthropic
from tests.fakes.openai_server import Call, FakeOpenAI, Handlers, Recorded
from tests.fakes.openai_wire import reset
from tests.fakes.tool_server import Answer, Asked, ToolServer

TAG: Final = re.compile(r"<m\d+-(\d+)>")
WORDS: Final = (
    "ink",
    "vellum",
    "scribe",
    "margin",
    "quire",
    "gloss",
    "rubric",
    "folio",
    "ligature",
)
KEY: Final = "sk-chaos-{}"

Script = Mapping[str, Any]
"""Fields of a fake's Reply; both wires' are called alike."""


@dataclass(frozen=True, kw_only=True)
class Fault:
    """One way to fail. `late`: behind the first delta; `drop`: the connection ends without HTTP."""

    name: str
    weight: float
    script: Script = field(default_factory=dict)
    late: bool = False
    drop: bytes | None = None


GARBAGE: Final = (
    b"",
    b"{}",
    b"\x00\xff\xfe\x80" * 40 + b"\n\n",
    b"<html><body>502 Bad Gateway</body></html>\n\n",
    b'data: {"choices": [{"delta": {"conte\n\n',
    b'event: content_block_delta\ndata: {"type": "content_block_delta", "delta": null}\n\n',
    b'data: {"choices": [{"index": 0, "delta": {"content": 17}}]}\n\n',
)
EARLY: Final = (
    Fault(name="429", weight=3, script={"status": 429}),
    Fault(name="429, short Retry-After", weight=2, script={"status": 429, "retry_after": "0.2"}),
    Fault(name="429, long Retry-After", weight=2, script={"status": 429, "retry_after": "60"}),
    Fault(name="500", weight=3, script={"status": 500}),
    Fault(name="529", weight=3, script={"status": 529}),
    Fault(name="reset before the head", weight=3, drop=b""),
    Fault(name="no HTTP", weight=1, drop=b"\x15\x03\x03\x00\x02\x02\x28 no HTTP\r\n\r\n"),
    Fault(name="reset behind the head", weight=3, script={"cut_after": 0}),
    Fault(name="cut off behind the head", weight=3, script={"truncate_after": 0}),
    Fault(name="error in a 200", weight=3, script={"error_after": 0}),
    *(Fault(name="garbage", weight=0.45, script={"raw": raw}) for raw in GARBAGE),
    Fault(name="stall before the head", weight=1, script={"hang": True}),
    Fault(name="stall behind the head", weight=1, script={"hold_at": 0}),
)
LATE: Final = (
    Fault(name="late: reset", weight=1, script={"cut_after": 2}, late=True),
    Fault(name="late: cut off", weight=1, script={"truncate_after": 2}, late=True),
    Fault(name="late: error in a 200", weight=1, script={"error_after": 2}, late=True),
    Fault(name="late: stall", weight=0.5, script={"hold_at": 2}, late=True),
)
_LATE_SHARE: Final = 0.05
LEFT: Final = "left by the caller"
SLOW: Final = frozenset({LEFT, *(one.name for one in (*EARLY, *LATE) if "stall" in one.name)})
# the share of tries that fail
_FAIR: Final = 0.25
_BAD: Final = 0.75
# by the last digit of a message's number
_BAD_DAYS: Final = {"one": "23", "two": "36", "three": "68"}


def sealed(vendor: str, words: Sequence[str]) -> str:
    """An answer of this vendor that tells whether it is whole."""
    said = f"{vendor} says {len(words)}: {' '.join(words)}"
    return f"{said} #{hashlib.sha256(said.encode()).hexdigest()[:12]}"


def sealed_by(text: str) -> str | None:
    """Whose whole answer this is; None if it is none."""
    vendor, _, rest = text.partition(" says ")
    words = rest.partition(": ")[2].rpartition(" #")[0].split(" ")
    return vendor if sealed(vendor, words) == text else None


@dataclass(kw_only=True, eq=False)
class Served:
    """One request to a vendor, and what it got.

    `round` counts the rounds of calls behind the message with this tag, `number` this vendor's
    tries of this call. `reply` is None where the connection was dropped instead.
    """

    vendor: str
    tag: str
    round: int
    number: int
    streamed: bool
    key: str
    raw: bytes
    fault: Fault | None
    said: str = ""
    calls: tuple[str, ...] = ()
    reply: Any = None

    @property
    def whole(self) -> bool:
        """Whether all of an answer went out, and was waited for."""
        return self.fault is None and self.reply.finished.is_set() and not self.reply.gone.is_set()

    @property
    def fault_name(self) -> str:
        """What went wrong; empty for a whole answer."""
        if self.fault is not None:
            return self.fault.name
        return "" if self.whole else LEFT


class _Dropped(Exception):
    def __init__(self, junk: bytes) -> None:
        super().__init__(junk)
        self.junk = junk


async def _drop(request: web.BaseRequest, dropped: _Dropped) -> web.Response:
    if dropped.junk and request.transport is not None:
        request.transport.write(dropped.junk)
        request.transport.close()
    else:
        await reset(request)  # type: ignore[arg-type]
    return web.Response()  # nobody reads this


class _Handlers(Handlers):
    async def complete(self, request: web.Request) -> web.StreamResponse:
        try:
            return await super().complete(request)
        except _Dropped as dropped:
            return await _drop(request, dropped)


class _OpenAI(FakeOpenAI):
    def __init__(self) -> None:
        super().__init__()
        self._handlers = _Handlers(self._pick, cadence=None, keep=False)


class _Counted(list[Any]):
    """Keeps how many there were and forgets the rest, of which a long run has much."""

    def append(self, _: object) -> None:
        super().append(None)


class _Anthropic(FakeAnthropic):
    def __init__(self, *, key: str) -> None:
        super().__init__(key=key)
        self._recorded = _Counted()

    async def _messages(self, request: web.Request) -> web.StreamResponse:
        try:
            return await super()._messages(request)
        except _Dropped as dropped:
            return await _drop(request, dropped)


class _Tools(ToolServer):
    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await super()._handle(request)
        except _Dropped as dropped:
            return await _drop(request, dropped)


class Chaos:
    """All of it, running; a context manager."""

    # in the order of the chain
    vendors: Final = ("one", "two", "three")
    tool_methods: Final = {"write_note": "POST", "put_note": "PUT", "find_note": "GET"}

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.served: list[Served] = []
        self._tries: Counter[tuple[str, str, int]] = Counter()
        self._keys: list[str] = []
        self._lock = threading.Lock()
        self._fakes = (_OpenAI(), _Anthropic(key=KEY.format("two")), _OpenAI())
        self.tools = _Tools()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        for vendor, fake in zip(self.vendors, self._fakes, strict=True):
            self._stack.enter_context(fake)
            reply_type = anthropic_server.Reply if vendor == "two" else openai_server.Reply
            fake.default(partial(self._serve, vendor, reply_type))
        self._stack.enter_context(self.tools)
        for name in self.tool_methods:
            self.tools.on(f"/{name}", self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def environ(self) -> dict[str, str]:
        """The variables by which a system knows these vendors and may call these tools."""
        one, two, three = (fake.base_url for fake in self._fakes)
        return {
            "PAL_PROVIDERS": "openai:one,anthropic:two,openai@second:three",
            "OPENAI_BASE_URL": one,
            "OPENAI_API_KEY": KEY.format("one"),
            "ANTHROPIC_BASE_URL": two,
            "ANTHROPIC_API_KEY": KEY.format("two"),
            "PAL_PROVIDER_SECOND_BASE_URL": three,
            "PAL_PROVIDER_SECOND_API_KEY": KEY.format("three"),
            "PAL_PROVIDER_FIRST_TIMEOUT": "1500ms",
            "PAL_PROVIDER_IDLE_TIMEOUT": "1500ms",
            "PAL_PROVIDER_ANSWER_TIMEOUT": "1500ms",
            "PAL_PROVIDER_RETRIES": "1",
            "PAL_PROVIDER_BREAKER": "4",
            "PAL_PROVIDER_BREAKER_REST": "1s",
            "PAL_TOOL_PRIVATE_HOSTS": self.tools.host,
        }

    @property
    def refused(self) -> list[str]:
        """Why vendors would take a request for wrong, which they never should."""
        return [*self._keys, *(reason for fake in self._fakes for reason in fake.refused)]

    @property
    def ran(self) -> list[str]:
        """The id of each tool call that arrived."""
        return [_call_id(asked) for asked in self.tools.asked]

    def _dice(self, *about: object) -> random.Random:
        return random.Random("/".join(map(str, (self.seed, *about))))

    def _serve(self, vendor: str, reply_type: type[Any], asked: Recorded) -> Any:
        tag, number, rounds = _place(asked.body["messages"])
        streamed = bool(asked.body.get("stream"))
        key = asked.headers.get("x-api-key") or asked.headers.get("authorization", "")
        with self._lock:
            if key.removeprefix("Bearer ") != KEY.format(vendor):
                self._keys.append(f"the key {key} is not {vendor}'s")
            self._tries[vendor, tag, rounds] += 1
            tries = self._tries[vendor, tag, rounds]
        dice = self._dice(vendor, tag, rounds, tries)
        served = Served(
            vendor=vendor,
            tag=tag,
            round=rounds,
            number=tries,
            streamed=streamed,
            key=asked.headers.get("idempotency-key", ""),
            raw=asked.raw,
            fault=_fault(dice, vendor, number, streamed=streamed),
        )
        script = self._answer(dice, served, bool(asked.body.get("tools")))
        if served.fault is not None:
            script |= served.fault.script
        if served.fault is None or served.fault.drop is None:
            served.reply = reply_type(**script)
        with self._lock:
            self.served.append(served)
        if served.reply is None:
            raise _Dropped(served.fault.drop)  # type: ignore[union-attr, arg-type]
        return served.reply

    def _answer(self, dice: random.Random, served: Served, with_tools: bool) -> dict[str, Any]:
        # by the message alone: every vendor would take as many rounds
        rounds = self._dice(served.tag).choice((0, 1, 1, 2, 3)) if with_tools else 0
        script: dict[str, Any] = {"first_ms": dice.uniform(0, 6), "inter_ms": dice.uniform(0, 2)}
        if served.round < rounds:
            who = f"{served.vendor}.{served.tag[1:-1]}.{served.round}.{served.number}"
            served.calls = tuple(f"{who}.{place}" for place in range(dice.choice((1, 1, 2, 3))))
            names = [dice.choice([*self.tool_methods]) for _ in served.calls]
            script["tool_calls"] = [
                Call(name, {"id": one}) for name, one in zip(names, served.calls, strict=True)
            ]
        else:
            served.said = sealed(served.vendor, dice.choices(WORDS, k=dice.randint(4, 30)))
            script["pieces"] = re.findall(r"\S+ ?", served.said)
        return script

    def _run(self, asked: Asked) -> Answer:
        call_id = _call_id(asked)
        luck = self._dice(call_id).random()
        if luck < 0.08:
            raise _Dropped(b"")
        if luck < 0.16:
            return Answer(status=500, pieces=[b"the tool broke"])
        return Answer(pieces=[f"done: {call_id}".encode()])


def _fault(dice: random.Random, vendor: str, number: int, *, streamed: bool) -> Fault | None:
    bad = str(number)[-1] in _BAD_DAYS[vendor]
    luck = dice.random()
    if luck < (_BAD if bad else _FAIR):
        kinds: Sequence[Fault] = EARLY
    elif streamed and luck > 1 - _LATE_SHARE:
        kinds = LATE
    else:
        return None
    return dice.choices(kinds, [one.weight for one in kinds])[0]


def _place(messages: list[dict[str, Any]]) -> tuple[str, int, int]:
    """The newest message's tag, its number in the session, and the rounds of calls behind it."""
    for at in range(len(messages) - 1, -1, -1):
        if messages[at]["role"] == "user":
            tags = list(TAG.finditer(orjson.dumps(messages[at]["content"]).decode()))
            if tags:
                rounds = sum(one["role"] == "assistant" for one in messages[at:])
                return tags[-1][0], int(tags[-1][1]), rounds
    raise ValueError("no message of this conversation has a tag")


def _call_id(asked: Asked) -> str:
    query = parse_qs(urlsplit(asked.path).query)
    return str(query["id"][0] if "id" in query else asked.json["id"])
