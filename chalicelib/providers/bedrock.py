"""The Bedrock wire: Converse and ConverseStream, through boto3."""

import base64
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, Final

import orjson

from chalicelib.errors import ProviderUnsupported
from chalicelib.providers.base import (
    ModelEvent,
    ModelMessage,
    ModelRequest,
    ProviderOptions,
    TextDelta,
    ToolSpec,
)
from chalicelib.providers.bedrock_client import BedrockClient
from chalicelib.providers.bedrock_reader import ConverseReader
from chalicelib.providers.history import (
    UNSEEN_IMAGE,
    CallPart,
    ImagePart,
    Part,
    ReasoningPart,
    ResultPart,
    TextPart,
    normalise,
)
from chalicelib.providers.images import media_type
from chalicelib.providers.prices import writes_cache
from chalicelib.providers.reading import unfenced
from chalicelib.providers.reasoning import answer_with_reasoning

_FORMATS: Final = {
    "image/png": "png",
    "image/jpeg": "jpeg",
    "image/gif": "gif",
    "image/webp": "webp",
}

# that a tool failed has a field which only these models' requests may have
_STATUS_KNOWN: Final = ("anthropic.", "amazon.nova")

# Not the service's own `outputConfig`: few models take it, and the others answer 400, which would
# end the walk of the chain. Whoever asks with a schema validates the answer.
_SCHEMA: Final = (
    "Answer with exactly one JSON value that is valid against the JSON Schema below, and with "
    "nothing else: no words before or after it, no code fence.\n\n"
)


class BedrockProvider:
    """One model, an inference profile or an ARN of either.

    Credentials, region and endpoint are AWS's own variables'; `api_key`, where set, is a Bedrock
    API key that is used instead of the credentials, and `base_url` instead of the endpoint.
    """

    def __init__(self, options: ProviderOptions) -> None:
        self.name, self.model = options.name, options.model
        self._client = BedrockClient(options)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        return answer_with_reasoning(self, request, answer=self._answer, body=self._body)

    async def close(self) -> None:
        """End what is under way and close the connections."""
        self._client.close()

    def _body(self, request: ModelRequest) -> dict[str, Any]:
        return to_wire(request, provider=self.name, model=self.model)

    async def _answer(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        reader = ConverseReader(provider=self.name, model=self.model)
        operation: Any = "ConverseStream" if request.stream else "Converse"
        async with aclosing(self._client.events(operation, self._body(request))) as events:
            async for event in events:
                if request.stream:
                    for delta in reader.feed(event):
                        yield delta
                    continue
                text = reader.take_whole(event)
                if text and request.schema is not None:
                    text = unfenced(text)
                if text:
                    yield TextDelta(text=text)
        for last in reader.finish():
            yield last


def to_wire(request: ModelRequest, *, provider: str, model: str) -> dict[str, Any]:
    """The arguments of Converse; raises ProviderUnsupported for a new image it cannot carry."""
    fitting = _without_misfits(request, provider=provider, model=model)
    exchanges = normalise(fitting, provider=provider, model=model, images=True, flatten_tools=True)
    has_status = any(name in model for name in _STATUS_KNOWN)
    # models without a cache answer 400 to a mark of what it is to hold
    has_cache = writes_cache(provider, model)
    body: dict[str, Any] = {
        "modelId": model,
        "messages": [
            {
                "role": one.role,
                "content": [
                    *(_block(part, has_status) for part in one.parts),
                    *([{"cachePoint": {"type": "default"}}] if one.kept and has_cache else ()),
                ],
            }
            for one in exchanges
        ],
    }
    system = [request.system] if request.system.strip() else []
    if request.schema is not None:
        system.append(_SCHEMA + orjson.dumps(request.schema).decode())
    if system:
        body["system"] = [{"text": "\n\n".join(system)}]
    if request.max_tokens is not None:
        body["inferenceConfig"] = {"maxTokens": request.max_tokens}
    if request.tools:
        body["toolConfig"] = {"tools": [{"toolSpec": _tool(one)} for one in request.tools]}
    return body


def _without_misfits(request: ModelRequest, *, provider: str, model: str) -> ModelRequest:
    """The request with older images that the wire cannot carry told of in words."""
    answers = [n for n, message in enumerate(request.messages) if message.role == "assistant"]
    newest = max(answers, default=-1) + 1
    for message in request.messages[newest:]:
        for problem in _misfits(message):
            raise ProviderUnsupported(f"{provider}:{model} cannot see {problem}.")
    older = (_described(message) for message in request.messages[:newest])
    return replace(request, messages=(*older, *request.messages[newest:]))


def _described(message: ModelMessage) -> ModelMessage:
    misfits = list(_misfits(message))
    if not misfits:
        return message
    fitting = tuple(one for one in message.attachments if _misfit(one) is None)
    told = [message.content] if message.content.strip() else []
    content = "\n".join([*told, *[UNSEEN_IMAGE] * len(misfits)])
    return replace(message, content=content, attachments=fitting)


def _misfits(message: ModelMessage) -> Iterator[str]:
    return (problem for one in message.attachments if (problem := _misfit(one)))


def _misfit(attachment: dict[str, Any]) -> str | None:
    """Why this image cannot be sent, as the end of a sentence; None for one that can."""
    if "data" not in attachment:
        return "images by URL, only such as are sent along"
    if len(attachment["data"]) % 4:
        return "an image whose base64 is incomplete"
    named = media_type(attachment)
    return None if named in _FORMATS else f"images of the type {named}"


def _block(part: Part, has_status: bool) -> dict[str, Any]:
    match part:
        case TextPart():
            return {"text": part.text}
        case ImagePart():
            source = {"bytes": base64.b64decode(part.attachment["data"])}
            return {"image": {"format": _FORMATS[media_type(part.attachment)], "source": source}}
        case CallPart():
            call = {"toolUseId": part.id, "name": part.name, "input": part.arguments}
            return {"toolUse": call}
        case ResultPart():
            return {"toolResult": _result(part, has_status)}
        case ReasoningPart():
            return {"reasoningContent": _reasoning(part.block)}


def _result(part: ResultPart, has_status: bool) -> dict[str, Any]:
    if not part.is_error:
        return {"toolUseId": part.call_id, "content": [{"text": part.text}]}
    if has_status:
        content = [{"text": part.text}]
        return {"toolUseId": part.call_id, "content": content, "status": "error"}
    return {"toolUseId": part.call_id, "content": [{"text": f"The tool failed: {part.text}"}]}


def _reasoning(block: dict[str, Any]) -> dict[str, Any]:
    # bytes are kept as text, see the reader
    redacted = block.get("redactedContent")
    return {"redactedContent": base64.b64decode(redacted)} if redacted else block


def _tool(spec: ToolSpec) -> dict[str, Any]:
    tool = {"name": spec.name, "inputSchema": {"json": {"type": "object", **spec.parameters}}}
    return tool | ({"description": spec.description} if spec.description.strip() else {})
