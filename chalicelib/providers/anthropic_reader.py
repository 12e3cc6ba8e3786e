"""What comes back over the Anthropic Messages wire, streamed or whole, as our events.

A message is a list of blocks, each begun, filled by deltas and ended; the same blocks make up an
answer that comes whole. Text is given on as it comes; calls, reasoning and counts wait for the
end. What is not known here (a ping, a new kind of event, block or delta) is passed over.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from chalicelib.errors import ProviderUnavailable
from chalicelib.providers.base import Finished, ModelEvent, Reasoning, TextDelta, ToolCall
from chalicelib.providers.http import failure
from chalicelib.providers.reading import TextCleaner, clean_text, count, parse_json, safe_name
from chalicelib.providers.sse import SseDecoder

_REASONS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
}
_REASONING: Final = frozenset({"thinking", "redacted_thinking"})
# the field of a block that a delta fills; both call it alike but for a call's input
_FILLS: Final = {
    "input_json_delta": "partial_json",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}


def error_kind(body: bytes) -> str:
    """The vendor's name for the error in this body of a refusal; empty where it has none."""
    try:
        return safe_name(orjson.loads(body)["error"]["type"])
    except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
        return ""


class MessageReader:
    """One answer: feed it the stream's bytes, or take it whole, then `finish`."""

    def __init__(self, *, provider: str, model: str) -> None:
        self._provider, self._model = provider, model
        self._told = f"{provider}:{model}"
        self._sse = SseDecoder()
        self._cleaner = TextCleaner()
        self._blocks: dict[int, _Block] = {}
        self._usage: dict[str, int] = {}
        self._stop: str | None = None
        self.done = False

    def feed(self, data: bytes) -> Iterator[TextDelta]:
        """The deltas in these bytes; raises ProviderError on an error event or broken JSON."""
        for event, payload in self._sse.feed(data):
            if not payload.strip():
                continue
            try:
                text = self._take(event, parse_json(payload, self._told))
            except (AttributeError, KeyError, TypeError) as exc:
                raise self._no_message() from exc
            if text:
                yield TextDelta(text=text)
            if self.done:
                return

    def take_whole(self, payload: bytes) -> str:
        """The text of an answer that came whole; raises ProviderError where it is none."""
        message = parse_json(payload, self._told)
        try:
            if message["type"] == "error":
                raise failure(self._told, kind=safe_name(message["error"]["type"]))
            text = "".join(self._begin(n, block) for n, block in enumerate(message["content"]))
            self._count(message.get("usage"))
            self._stop = message["stop_reason"] and _reason(message["stop_reason"])
        except (AttributeError, KeyError, TypeError) as exc:
            raise self._no_message() from exc
        return text + self._cleaner.end()

    def finish(self) -> list[ModelEvent]:
        """The end of the answer; raises ProviderUnavailable if it came too early."""
        if self._stop is None and not self.done:
            raise ProviderUnavailable(f"{self._told} ended in the middle of its answer.")
        try:
            calls, reasoning = self._calls(), self._reasoning()
        except TypeError as exc:
            raise self._no_message() from exc
        read = self._usage.get("cache_read_input_tokens")
        written = self._usage.get("cache_creation_input_tokens")
        tokens_in = self._usage.get("input_tokens")
        if tokens_in is not None:
            # the vendor counts what went past its cache apart
            tokens_in = count(tokens_in + (read or 0) + (written or 0))
        reason = self._stop or "stop"
        end = Finished(
            reason="tool_calls" if calls and reason == "stop" else reason,
            provider=self._provider,
            model=self._model,
            tokens_in=tokens_in,
            tokens_out=self._usage.get("output_tokens"),
            tokens_cached=read,
            tokens_cache_written=written,
            tool_calls=calls,
            reasoning=reasoning,
        )
        left = self._cleaner.end()
        return [TextDelta(text=left), end] if left else [end]

    def _take(self, event: str, said: Any) -> str:
        if not isinstance(said, dict):
            return ""
        kind = said.get("type") or event
        if kind == "content_block_delta":
            return self._fill(said["index"], said["delta"])
        if kind == "content_block_start":
            return self._begin(said["index"], said["content_block"])
        if kind == "message_start":
            self._count(said["message"].get("usage"))
        elif kind == "message_delta":
            self._count(said.get("usage"))
            if reason := said["delta"].get("stop_reason"):
                self._stop = _reason(reason)
        elif kind == "message_stop":
            self.done = True
        elif kind == "error":
            error = said.get("error")
            named = error.get("type") if isinstance(error, dict) else None
            raise failure(self._told, kind=safe_name(named))
        return ""

    def _begin(self, index: int, fields: dict[str, Any]) -> str:
        self._blocks[index] = _Block(kind=fields["type"], fields=fields)
        return self._cleaner.feed(fields["text"]) if fields["type"] == "text" else ""

    def _fill(self, index: int, delta: dict[str, Any]) -> str:
        kind = delta["type"]
        if kind == "text_delta":
            return self._cleaner.feed(delta["text"])
        if name := _FILLS.get(kind):
            self._blocks[index].pieces.setdefault(name, []).append(delta[name])
        return ""

    def _count(self, usage: Any) -> None:
        # a later count includes the earlier ones, and not every server tells all of them twice
        for name, value in (usage or {}).items():
            if (counted := count(value)) is not None:
                self._usage[name] = max(counted, self._usage.get(name, 0))

    def _calls(self) -> tuple[ToolCall, ...]:
        last = max(self._blocks, default=None)
        calls = []
        for index, block in self._blocks.items():
            if block.kind != "tool_use":
                continue
            arguments = block.arguments()
            if self._stop == "length" and index == last and not arguments:
                continue  # cut off before its arguments, which need not be none
            calls.append(
                ToolCall(
                    id=clean_text(_string(block.fields.get("id"))),
                    name=clean_text(_string(block.fields.get("name"))),
                    arguments=clean_text(arguments) or "{}",
                )
            )
        return tuple(calls)

    def _reasoning(self) -> Reasoning | None:
        found = [block for block in self._blocks.values() if block.kind in _REASONING]
        first = list(self._blocks.values())[: len(found)]
        # it is given back before text and calls, and refused anywhere but where it was
        if not found or found != first:
            return None
        blocks = tuple(block.filled() for block in found)
        try:
            text = orjson.dumps(blocks)
        except TypeError:  # half of a surrogate pair
            return None
        # Postgres holds no NUL, and made clean it would be refused
        if b"\\u0000" in text:
            return None
        return Reasoning(provider=self._provider, model=self._model, blocks=blocks)

    def _no_message(self) -> ProviderUnavailable:
        return ProviderUnavailable(f"{self._told} sent what is no message.")


@dataclass(kw_only=True)
class _Block:
    kind: str
    fields: dict[str, Any]
    pieces: dict[str, list[str]] = field(default_factory=dict)

    def arguments(self) -> str:
        """A call's arguments as JSON; empty where none came."""
        if text := "".join(self.pieces.get("partial_json", ())).strip():
            return text
        begun = self.fields.get("input")
        return orjson.dumps(begun).decode() if begun else ""

    def filled(self) -> dict[str, Any]:
        """The block as it would have come whole."""
        return self.fields | {
            name: _string(self.fields.get(name)) + "".join(pieces)
            for name, pieces in self.pieces.items()
        }


def _reason(value: object) -> str:
    name = safe_name(value)
    return _REASONS.get(name, name) or "unknown"


def _string(value: object) -> str:
    return value if isinstance(value, str) else ""
