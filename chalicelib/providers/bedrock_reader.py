"""What comes back from Bedrock's Converse, streamed or whole, as our events. Pure: no I/O.

botocore has read the bytes already; what comes here are the service's events as dicts. Text is
given on as it comes; calls, reasoning and counts wait for the end. What is not known here (an
image, a citation, a tool that the service runs by itself) is passed over.
"""

import base64
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from chalicelib.errors import (
    ProviderDenied,
    ProviderError,
    ProviderUnavailable,
    ProviderUnsupported,
)
from chalicelib.providers.base import Finished, ModelEvent, Reasoning, TextDelta, ToolCall
from chalicelib.providers.http import failure
from chalicelib.providers.reading import TextCleaner, clean_text, count, safe_name
from chalicelib.texts import is_storable

_REASONS: Final = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_calls",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
}
# the service itself says that the answer is none
_BROKEN: Final = frozenset({"malformed_model_output", "malformed_tool_use"})

# One error stands for all that may be wrong with a request, though these sentences of it blame
# the model's id or what the model can do. Another model may well take the same request.
_NO_SUCH_MODEL: Final = ("model identifier is invalid", "on-demand throughput", "support the model")
_UNABLE: Final = ("model doesn't support", "model does not support")


def refusal(
    told: str, *, code: str, message: str, status: int | None, retry_after: str | None = None
) -> ProviderError:
    """What an error of the service means; `status` is None for one inside of an answer.

    Of `message`, the service's words, none is repeated.
    """
    kind = safe_name(code)
    kind = kind[:1].upper() + kind[1:]  # inside of an answer they begin in lower case
    if kind == "ValidationException":
        plain = message.replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")
        if any(words in plain for words in _NO_SUCH_MODEL):
            return ProviderDenied(f"{told} is no model that can be called like this ({kind}).")
        if any(words in plain for words in _UNABLE):
            return ProviderUnsupported(f"{told} does not support what was asked for ({kind}).")
    elif status == 400:
        status = None  # quotas and credentials come with it too: the name says more
    return failure(told, status=status, kind=kind, retry_after=retry_after)


class ConverseReader:
    """One answer: feed it the stream's events, or take it whole, then `finish`."""

    def __init__(self, *, provider: str, model: str) -> None:
        self._provider, self._model = provider, model
        self._told = f"{provider}:{model}"
        self._cleaner = TextCleaner()
        self._blocks: dict[int, _Block] = {}
        self._usage: Mapping[str, Any] = {}
        self._stop: str | None = None

    def feed(self, event: Mapping[str, Any]) -> Iterator[TextDelta]:
        """The deltas in this event; raises ProviderUnavailable where it is none."""
        try:
            text = self._take(event)
        except (AttributeError, KeyError, TypeError) as exc:
            raise self._no_message() from exc
        if text:
            yield TextDelta(text=text)

    def take_whole(self, answer: Mapping[str, Any]) -> str:
        """The text of an answer that came whole; raises ProviderUnavailable where it is none."""
        try:
            content = answer["output"]["message"]["content"]
            text = "".join(self._whole(n, block) for n, block in enumerate(content))
            self._usage = answer.get("usage") or {}
            self._stop = self._reason(answer["stopReason"])
        except (AttributeError, KeyError, TypeError) as exc:
            raise self._no_message() from exc
        return text + self._cleaner.end()

    def finish(self) -> list[ModelEvent]:
        """The end of the answer; raises ProviderUnavailable if it came too early."""
        if self._stop is None:
            raise ProviderUnavailable(f"{self._told} ended in the middle of its answer.")
        read = count(self._usage.get("cacheReadInputTokens"))
        written = count(self._usage.get("cacheWriteInputTokens"))
        tokens_in = count(self._usage.get("inputTokens"))
        if tokens_in is not None:
            # the service counts what went past its cache apart
            tokens_in = count(tokens_in + (read or 0) + (written or 0))
        end = Finished(
            reason=self._stop,
            provider=self._provider,
            model=self._model,
            tokens_in=tokens_in,
            tokens_out=count(self._usage.get("outputTokens")),
            tokens_cached=read,
            tokens_cache_written=written,
            tool_calls=self._calls(),
            reasoning=self._reasoning(),
        )
        left = self._cleaner.end()
        return [TextDelta(text=left), end] if left else [end]

    def _take(self, event: Mapping[str, Any]) -> str:
        if "contentBlockStart" in event:
            begun = event["contentBlockStart"]
            if call := begun["start"].get("toolUse"):
                self._block(begun["contentBlockIndex"]).call = call
        elif "contentBlockDelta" in event:
            filled = event["contentBlockDelta"]
            return self._fill(self._block(filled["contentBlockIndex"]), filled["delta"])
        elif "messageStop" in event:
            self._stop = self._reason(event["messageStop"]["stopReason"])
        elif "metadata" in event:
            self._usage = event["metadata"].get("usage") or {}
        return ""

    def _fill(self, block: "_Block", delta: Mapping[str, Any]) -> str:
        if "text" in delta:
            return self._cleaner.feed(delta["text"])
        if "toolUse" in delta:
            block.arguments += delta["toolUse"]["input"]
        elif "reasoningContent" in delta:
            block.reason(delta["reasoningContent"])
        return ""

    def _whole(self, index: int, content: Mapping[str, Any]) -> str:
        block = self._block(index)
        if "text" in content:
            return self._cleaner.feed(content["text"])
        if "toolUse" in content:
            block.call = content["toolUse"]
            block.arguments = _json(block.call.get("input"))
        elif "reasoningContent" in content:
            reasoning = content["reasoningContent"]
            block.reason(reasoning.get("reasoningText") or reasoning)
        return ""

    def _block(self, index: int) -> "_Block":
        return self._blocks.setdefault(index, _Block())

    def _reason(self, value: object) -> str:
        name = safe_name(value)
        if name in _BROKEN:
            raise ProviderUnavailable(f"{self._told} gave up on its answer ({name}).")
        return _REASONS.get(name, name) or "unknown"

    def _calls(self) -> tuple[ToolCall, ...]:
        last = max(self._blocks, default=None)
        calls = []
        for index, block in self._blocks.items():
            if block.call is None or block.call.get("type") == "server_tool_use":
                continue
            if self._stop == "length" and index == last and not block.arguments.strip():
                continue  # cut off before its arguments, which need not be none
            calls.append(
                ToolCall(
                    id=clean_text(str(block.call.get("toolUseId") or "")),
                    name=clean_text(str(block.call.get("name") or "")),
                    arguments=clean_text(block.arguments.strip()) or "{}",
                )
            )
        return tuple(calls)

    def _reasoning(self) -> Reasoning | None:
        found = [block.reasoning for block in self._blocks.values()]
        first = found[: sum(map(bool, found))]
        blocks = tuple(one for block in first if (one := _returnable(block)))
        # it goes back before text and calls, whole and unchanged; otherwise it would be refused
        if not blocks or len(blocks) != len(first):
            return None
        return Reasoning(provider=self._provider, model=self._model, blocks=blocks)

    def _no_message(self) -> ProviderUnavailable:
        return ProviderUnavailable(f"{self._told} sent what is no message.")


@dataclass(kw_only=True)
class _Block:
    call: Mapping[str, Any] | None = None
    arguments: str = ""
    reasoning: dict[str, Any] = field(default_factory=dict)

    def reason(self, piece: Mapping[str, Any]) -> None:
        for name, value in piece.items():
            if name in {"text", "signature", "redactedContent"}:
                self.reasoning[name] = self.reasoning.get(name, type(value)()) + value


def _returnable(reasoning: dict[str, Any]) -> dict[str, Any] | None:
    """The block as it is kept, in JSON; None for one that is not signed or cannot be stored.

    Models that sign nothing do not want their reasoning back, and refuse it.
    """
    if redacted := reasoning.get("redactedContent"):
        return {"redactedContent": base64.b64encode(redacted).decode()}
    if not reasoning.get("signature"):
        return None
    block = {"text": reasoning.get("text", ""), "signature": reasoning["signature"]}
    return {"reasoningText": block} if all(map(is_storable, block.values())) else None


def _json(value: Any) -> str:
    if not value:
        return ""
    try:
        return orjson.dumps(value).decode()
    except TypeError:  # half a surrogate pair, or a number beyond 64 bits
        return json.dumps(value)
