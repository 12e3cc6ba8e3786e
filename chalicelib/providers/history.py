"""A conversation in the form that every wire takes: one shape, the strictest vendor's.

A stored history is whatever happened: messages that were sent in a row, an answer that never came,
a call that still waits for a person, a window that begins in the middle. Vendors refuse each of
these. What is made of it here starts and ends with the user, alternates, holds nothing empty, and
answers each call directly behind it. The stored history stays as it is.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal

import orjson

from chalicelib.errors import ProviderUnsupported
from chalicelib.providers.base import ModelMessage, ModelRequest, ToolCall

PENDING_RESULT: Final = (
    "Not executed. This call waits for a person to approve it, so the action has NOT been done "
    "and nothing has changed. Do not say or assume that it was done, and do not call it again: "
    "once it is decided, the outcome will be told in the conversation."
)
NO_OUTPUT: Final = "(The tool gave no output.)"
BEGINNING: Final = "(The assistant spoke first.)"
GO_ON: Final = "(Go on.)"
UNSEEN_IMAGE: Final = "(An image was here. This model cannot see images.)"

# tool names as all vendors take them; what a model made up may be any text
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9_-]")
_NAME_AT_MOST: Final = 64

# deeper ones cannot be written again: orjson ends at 254, and a wire wraps them
_DEPTH_AT_MOST: Final = 64


@dataclass(frozen=True, kw_only=True)
class TextPart:
    """A text, never blank."""

    text: str


@dataclass(frozen=True, kw_only=True)
class ImagePart:
    """An image as the contract has it: `{type, mediaType, data|url}`."""

    attachment: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class CallPart:
    """A call that the assistant made."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class ResultPart:
    """What became of the call `call_id` of the exchange before."""

    call_id: str
    name: str
    text: str
    is_error: bool


@dataclass(frozen=True, kw_only=True)
class ReasoningPart:
    """A block of the vendor's own, given back as it came."""

    block: dict[str, Any]


Part = TextPart | ImagePart | CallPart | ResultPart | ReasoningPart


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """What one side says until the other one does.

    An assistant's parts are its reasoning, then texts and calls; a user's are the results of the
    calls of the exchange before, then texts and images. `kept`: up to its end, the next request is
    likely to be the same.
    """

    role: Literal["user", "assistant"]
    parts: tuple[Part, ...]
    kept: bool = False


def normalise(
    request: ModelRequest, *, provider: str, model: str, images: bool, flatten_tools: bool = False
) -> list[Exchange]:
    """The request's messages, for this provider and model.

    Without `images` a new one raises ProviderUnsupported and an older one is told of. With
    `flatten_tools` calls become text where the request offers no tools.
    """
    flat = (
        flatten_tools
        and not request.tools
        and any(message.tool_calls for message in request.messages)
    )
    writer = _Writer(provider=provider, model=model, images=images, flat=flat)
    last = max(
        (n for n, message in enumerate(request.messages) if message.role == "assistant"),
        default=-1,
    )
    for n, message in enumerate(request.messages):
        writer.write(message, newest=n > last)
        if n + 1 == request.kept:
            writer.keep()
    return writer.end()


class _Writer:
    def __init__(self, *, provider: str, model: str, images: bool, flat: bool) -> None:
        self._provider, self._model = provider, model
        self._images, self._flat = images, flat
        self._exchanges: list[tuple[Literal["user", "assistant"], list[Part]]] = []
        self._calls: dict[str, ToolCall] = {}
        # the calls of the newest assistant message with what is known of them, until a user or
        # the assistant speaks, and where in the user's exchange the results belong
        self._open: dict[str, ModelMessage | None] = {}
        self._place = 0
        self._kept: int | None = None

    def write(self, message: ModelMessage, *, newest: bool) -> None:
        if message.role == "tool":
            self._result(message)
        elif message.role == "assistant":
            self._assistant(message)
        elif message.role == "system":
            self._user(_text(message.content))
        else:
            parts = [*_text(message.content), *self._pictures(message, newest=newest)]
            if parts:
                self._answer_calls()
                self._user(parts)

    def keep(self) -> None:
        """What the assistant said last is the end of what is kept; a user's part may yet grow."""
        spoken = [n for n, (role, _) in enumerate(self._exchanges) if role == "assistant"]
        self._kept = spoken[-1] if spoken else None

    def end(self) -> list[Exchange]:
        self._answer_calls()
        if not self._exchanges or self._exchanges[-1][0] == "assistant":
            self._user([TextPart(text=GO_ON)])
        return [
            Exchange(role=role, parts=tuple(parts), kept=n == self._kept)
            for n, (role, parts) in enumerate(self._exchanges)
        ]

    def _assistant(self, message: ModelMessage) -> None:
        said: list[Part] = _text(message.content)
        if not self._flat:
            said += [_call(call) for call in message.tool_calls]
        if not said and not message.tool_calls:
            return
        self._answer_calls()
        if said:
            if not self._exchanges:
                self._user([TextPart(text=BEGINNING)])
            self._speak(message, said)
        self._calls |= {call.id: call for call in message.tool_calls}
        self._open = {call.id: None for call in message.tool_calls}
        role, parts = self._exchanges[-1] if self._exchanges else ("user", [])
        self._place = len(parts) if role == "user" else 0

    def _speak(self, message: ModelMessage, said: list[Part]) -> None:
        role, parts = self._exchanges[-1]
        if role == "assistant":
            # its issuer wants reasoning as it was, which amid another message's it is not
            parts[:] = [part for part in parts if not isinstance(part, ReasoningPart)]
            parts.extend(said)
            return
        reasoning = None if self._flat else message.reasoning
        if reasoning and (reasoning.provider, reasoning.model) == (self._provider, self._model):
            said = [*(ReasoningPart(block=block) for block in reasoning.blocks), *said]
        self._say("assistant", said)

    def _result(self, message: ModelMessage) -> None:
        call_id = message.tool_call_id or ""
        if call_id in self._open and self._open[call_id] is None:
            self._open[call_id] = message
        elif call := self._calls.get(call_id):
            # its place behind the call is taken, and what was said since does not know of it
            outcome = "It failed" if message.is_error else "Its result"
            told = f"(News of {_told(call)}. {outcome}:)\n{_output(message)}"
            self._user([TextPart(text=told)])

    def _answer_calls(self) -> None:
        if not self._open:
            return
        results = [self._outcome(self._calls[one], found) for one, found in self._open.items()]
        self._open = {}
        if not self._exchanges or self._exchanges[-1][0] == "assistant":
            self._exchanges.append(("user", []))
        _, parts = self._exchanges[-1]
        parts[self._place : self._place] = results

    def _outcome(self, call: ToolCall, found: ModelMessage | None) -> Part:
        text = PENDING_RESULT if found is None else _output(found)
        failed = found is not None and found.is_error
        if self._flat:
            # both in the user's words: a call in the assistant's would be imitated as text
            outcome = "It failed" if failed else "Its result"
            return TextPart(text=f"(The assistant made {_told(call)}. {outcome}:)\n{text}")
        return ResultPart(call_id=call.id, name=_name(call), text=text, is_error=failed)

    def _pictures(self, message: ModelMessage, *, newest: bool) -> Iterator[Part]:
        for attachment in message.attachments:
            if self._images:
                yield ImagePart(attachment=attachment)
            elif newest:
                told = f"{self._provider}:{self._model} cannot see images."
                raise ProviderUnsupported(told)
            else:
                yield TextPart(text=UNSEEN_IMAGE)

    def _user(self, parts: list[Part]) -> None:
        if parts:
            self._say("user", parts)

    def _say(self, role: Literal["user", "assistant"], parts: list[Part]) -> None:
        if self._exchanges and self._exchanges[-1][0] == role:
            self._exchanges[-1][1].extend(parts)
        else:
            self._exchanges.append((role, list(parts)))


def _text(content: str) -> list[Part]:
    return [TextPart(text=content)] if content.strip() else []


def _output(message: ModelMessage) -> str:
    return message.content if message.content.strip() else NO_OUTPUT


def _call(call: ToolCall) -> CallPart:
    return CallPart(id=call.id, name=_name(call), arguments=_arguments(call.arguments))


def _told(call: ToolCall) -> str:
    arguments = orjson.dumps(_arguments(call.arguments)).decode()
    return f"the call of the tool `{_name(call)}` with the arguments {arguments}"


def _name(call: ToolCall) -> str:
    return _NO_NAME.sub("_", call.name)[:_NAME_AT_MOST] or "unnamed"


def _arguments(text: str) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError:
        return {"invalid_arguments": text}
    if value is None:
        return {}
    if not isinstance(value, dict) or not _fits(value, _DEPTH_AT_MOST):
        return {"invalid_arguments": text}
    return value


def _fits(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return True
    inner = value.values() if isinstance(value, dict) else value
    return depth > 0 and all(_fits(one, depth - 1) for one in inner)
