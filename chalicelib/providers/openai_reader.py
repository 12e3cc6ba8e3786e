"""An answer on the OpenAI wire, streamed or whole, from its bytes to events. Pure: no I/O."""

from collections.abc import Iterator
from typing import Any, Final

import orjson

from chalicelib.errors import ProviderError, ProviderUnavailable
from chalicelib.providers.base import Finished, Reasoning, TextDelta
from chalicelib.providers.http import failure, is_known_kind
from chalicelib.providers.openai_calls import CallReader
from chalicelib.providers.reading import TextCleaner, clean_text, count, parse_json, safe_name
from chalicelib.providers.sse import SseDecoder

# ends that are failures, of whoever put the model behind this wire
_FAILED: Final = frozenset({"abort", "error", "insufficient_system_resource"})
_REASONS: Final = {
    "function_call": "tool_calls",
    "max_tokens": "length",
    "model_length": "length",
}


def kind_of(body: bytes) -> str:
    """The name of the error in a refusal's body: its code, else its type; empty without either."""
    try:
        error = orjson.loads(body)
        if isinstance(error, list):
            error = error[0]
        return next(iter(_kinds(error.get("error") or error)), "")
    except (orjson.JSONDecodeError, LookupError, AttributeError):
        return ""


class AnswerReader:
    """Turns the bytes of one answer into its text and its end; streamed or whole, not both.

    The text is clean, see `TextCleaner`. With `reasons` the end holds what the model's server
    wants to be given back; it is asked for where tools are.
    """

    def __init__(self, *, provider: str, model: str, reasons: bool = False) -> None:
        self._sse = SseDecoder()
        self._provider, self._model = provider, model
        self._told = f"{provider}:{model}"
        self._text = TextCleaner()
        self._calls = CallReader()
        self._reasoning: list[str] | None = [] if reasons else None
        self._reason: str | None = None
        self._refused = False
        self._usage: dict[str, Any] = {}
        self.done = False

    def feed(self, data: bytes) -> Iterator[TextDelta]:
        """The deltas in these bytes; raises ProviderError on an error object or broken JSON.

        Deltas before the error are given first, so it does not matter how the bytes were cut.
        """
        for event, payload in self._sse.feed(data):
            if payload.strip() == b"[DONE]":
                self.done = True
                return
            text = self._read(payload, event=event) if payload.strip() else ""
            if text:
                yield TextDelta(text=text)

    def whole(self, body: bytes) -> tuple[str, Finished]:
        """The text and the end of an answer that was not streamed; raises as `feed` does."""
        text = self._read(body, whole=True)
        left, end = self.finish()
        return text + left, end

    def finish(self) -> tuple[str, Finished]:
        """The text that is left and the end; raises ProviderUnavailable if it came too early."""
        if self._reason is None and not self.done:
            raise ProviderUnavailable(f"{self._told} ended in the middle of its answer.")
        calls = self._calls.calls()
        reason = self._reason or "stop"
        if reason == "stop" and (calls or self._refused):
            reason = "tool_calls" if calls else "refusal"
        usage = self._usage
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        end = Finished(
            reason=reason,
            provider=self._provider,
            model=self._model,
            tokens_in=count(usage.get("prompt_tokens")),
            tokens_out=count(usage.get("completion_tokens")),
            tokens_cached=count(cached),
            tool_calls=calls,
            reasoning=self._reasoned(),
        )
        return self._text.end(), end

    def _read(self, payload: bytes, *, event: str = "message", whole: bool = False) -> str:
        chunk = parse_json(payload, self._told)
        try:
            if event == "error" and not (isinstance(chunk, dict) and chunk.get("error")):
                raise self._failure(chunk)
            return self._take(chunk, whole=whole)
        except (AttributeError, TypeError) as exc:
            raise ProviderUnavailable(f"{self._told} sent what is no completion.") from exc

    def _take(self, chunk: Any, *, whole: bool) -> str:
        if not isinstance(chunk, dict):
            return ""
        if error := chunk.get("error"):
            raise self._failure(error)
        if chunk.get("object") == "error":
            raise self._failure(chunk)
        # usage comes beside the last choice or alone with `choices` empty or absent
        if isinstance(usage := chunk.get("usage"), dict):
            self._usage = usage
        text = ""
        for choice in chunk.get("choices") or ():
            if choice.get("index"):
                continue
            if error := choice.get("error"):
                raise self._failure(error)
            text += self._choice(choice, "message" if whole else "delta", whole=whole)
        return text

    def _choice(self, choice: dict[str, Any], where: str, *, whole: bool) -> str:
        delta = choice.get(where) or {}
        text = self._text.feed(_said(delta.get("content")))
        # a refusal comes in a field of its own, and is what the model has to say
        if refusal := delta.get("refusal"):
            text += self._text.feed(refusal)
            self._refused = True
        for fragment in delta.get("tool_calls") or ():
            self._calls.take(fragment, whole=whole)
        if self._reasoning is not None and (thought := delta.get("reasoning_content")):
            self._reasoning.append(_said(thought))
        if reason := choice.get("finish_reason"):
            name = safe_name(reason)
            if name in _FAILED:
                raise self._failure({"type": name})
            self._reason = _REASONS.get(name, name) or "unknown"
        elif whole and where in choice:
            self._reason = "stop"
        return text

    def _reasoned(self) -> Reasoning | None:
        thought = clean_text("".join(self._reasoning or ()))
        if not thought:
            return None
        blocks = ({"reasoning_content": thought},)
        return Reasoning(provider=self._provider, model=self._model, blocks=blocks)

    def _failure(self, error: Any) -> ProviderError:
        kinds = _kinds(error)
        known = next(filter(is_known_kind, kinds), "")
        return failure(self._told, kind=known or next(iter(kinds), ""))


def _kinds(error: Any) -> list[str]:
    """What an error is named with, the most telling first: a code, its type, a number."""
    named = (error.get("code"), error.get("type")) if isinstance(error, dict) else ()
    return sorted(filter(None, map(safe_name, named)), key=str.isdecimal)


def _said(content: Any) -> str:
    """The text of a content, which is a text, absent, or a list of parts."""
    if isinstance(content, list):
        return "".join(_said(part.get("text")) for part in content if part.get("type") == "text")
    if content is not None and not isinstance(content, str):
        raise TypeError("content is neither text nor parts")
    return content or ""
