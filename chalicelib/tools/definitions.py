"""One entry of an agent's `tools`, as it is sent and kept: each kind told apart by `kind`.

What can be refused when an agent is saved is refused here, with the field's name, so that a turn
does not fail over it later. Whether a host may be called and a function be invoked is the
process's to say, and is asked at each call.
"""

import json
import math
import re
from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    Field,
    StringConstraints,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
    model_validator,
)

from chalicelib.outbound import Refused, read_url
from chalicelib.shapes import In, JsonObject, Text, wrong_at
from chalicelib.texts import is_storable
from chalicelib.tools import templates
from chalicelib.tools.base import Approval
from chalicelib.tools.builtin import BUILTINS
from chalicelib.tools.headers import Headers
from chalicelib.tools.microvm import CALLS
from chalicelib.tools.schema import schema_fault

_BODY_BYTES_AT_MOST: Final = 64 * 1024
_BODY_DEPTH_AT_MOST: Final = 32
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})

# a function of this account and region, or one that is named in full
_FUNCTION: Final = re.compile(
    r"(?:arn:aws[a-z-]*:lambda:[a-z0-9-]{1,30}:[0-9]{12}:function:)?"
    r"[A-Za-z0-9_-]{1,64}(?::(?:\$LATEST|[A-Za-z0-9_-]{1,128}))?"
)


def _parameters(schema: dict[str, Any]) -> dict[str, Any]:
    if fault := schema_fault(schema):
        raise wrong_at(*fault)
    return schema


def _url(url: str) -> str:
    try:
        read_url(url)
    except Refused as exc:
        raise ValueError(str(exc)) from None
    if "#" in url:
        raise ValueError("must not hold a fragment (#…)")
    return url


def _url_template(template: str) -> str:
    if "{{secret:" in template:
        raise ValueError("must not hold a secret: secrets go into headers")
    places = templates.url_places(template)
    filled = template
    for name in places:
        filled = filled.replace(f"{{{name}}}", "x")
    _url(filled)
    before_path = re.split(r"[/?#]", template.partition("://")[2])[0]
    if "{" in before_path or "{" in template.partition("://")[0]:
        raise ValueError("must hold arguments in its path or query only, not in its host")
    return template


ToolName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
Parameters = Annotated[JsonObject, AfterValidator(_parameters)]
Url = Annotated[Text, Field(max_length=2000), AfterValidator(_url)]
UrlTemplate = Annotated[Text, Field(max_length=2000), AfterValidator(_url_template)]


def _no_arguments() -> dict[str, Any]:
    return {"type": "object", "properties": {}}


class Definition(In):
    """What every kind has. `timeout` is in seconds; without it the process's holds."""

    name: ToolName
    description: Annotated[Text, Field(min_length=1, max_length=4000)] | None = None
    approval: Approval = "never"
    read_only: bool = False
    idempotent: bool = False
    timeout: Annotated[float, Field(gt=0, le=600)] | None = None


class BuiltinTool(Definition):
    """One of our own tools, by its name."""

    kind: Literal["builtin"]

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in BUILTINS:
            raise ValueError(f"is no builtin; there are {', '.join(sorted(BUILTINS))}")
        return name


class HttpTool(Definition):
    """A request that the arguments are put into; see `templates` for how.

    Without a `body`, POST, PUT and PATCH send the arguments as a JSON object, and GET and DELETE
    put those without a place in the URL into its query.
    """

    kind: Literal["http"]
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE"]
    url: UrlTemplate
    headers: Headers = Field(default_factory=dict)
    body: Any = None
    parameters: Parameters = Field(default_factory=_no_arguments)

    @field_validator("body")
    @classmethod
    def _plain(cls, body: Any, info: ValidationInfo) -> Any:
        if body is not None and info.data.get("method", "POST") not in _WITH_BODY:
            raise ValueError("is for POST, PUT and PATCH only")
        _walk(body, ())
        if len(json.dumps(body, ensure_ascii=False).encode()) > _BODY_BYTES_AT_MOST:
            raise ValueError(f"must not be larger than {_BODY_BYTES_AT_MOST // 1024} KB")
        return body

    @model_validator(mode="after")
    def _places_are_arguments(self) -> "HttpTool":
        known = set(self.parameters.get("properties", {}))
        for field, places in (
            ("url", templates.url_places(self.url)),
            ("body", templates.body_places(self.body)),
        ):
            if unknown := sorted(places - known):
                reason = f"names {{{unknown[0]}}}, which `parameters` has no property for"
                raise wrong_at((field,), reason)
        return self


class McpTool(Definition):
    """A remote MCP server. Its tools are offered as `<name>__<tool>`, all or those in `tools`."""

    kind: Literal["mcp"]
    url: Url
    headers: Headers = Field(default_factory=dict)
    tools: (
        Annotated[list[Annotated[Text, Field(min_length=1, max_length=128)]], Field(max_length=128)]
        | None
    ) = None


class LambdaTool(Definition):
    """An AWS Lambda function: its name or ARN, with a version or alias or without."""

    kind: Literal["lambda"]
    function: Text
    parameters: Parameters = Field(default_factory=_no_arguments)

    @field_validator("function")
    @classmethod
    def _function(cls, function: str) -> str:
        if not _FUNCTION.fullmatch(function):
            raise ValueError("must be the name or the ARN of a Lambda function")
        return function


class MicrovmTool(Definition):
    """Work in the session's microVM, by its name; for agents with `isolation: "microvm"`."""

    kind: Literal["microvm"]

    @field_validator("name")
    @classmethod
    def _known(cls, name: str) -> str:
        if name not in CALLS:
            raise ValueError(
                f"is nothing that a microVM does; there are {', '.join(sorted(CALLS))}"
            )
        return name


_MODELS: Final[dict[str, type[Definition]]] = {
    "builtin": BuiltinTool,
    "http": HttpTool,
    "mcp": McpTool,
    "lambda": LambdaTool,
    "microvm": MicrovmTool,
}


def _of_its_kind(value: Any, validate: ValidatorFunctionWrapHandler) -> Any:
    # the union would put the kind into the path of each error
    if not isinstance(value, dict):
        return validate(value)
    kind = value.get("kind")
    model = _MODELS.get(kind) if isinstance(kind, str) else None
    if model is None:
        raise wrong_at(("kind",), f"must be one of {', '.join(_MODELS)}")
    return model.model_validate(value)


ToolDefinition = Annotated[
    BuiltinTool | HttpTool | McpTool | LambdaTool | MicrovmTool,
    Field(discriminator="kind"),
    WrapValidator(_of_its_kind),
]
"""Any kind of entry; an error's path is the field's, without the kind."""


def offered_name(definition: Definition) -> str:
    """The name that a model sees; of an MCP server what its tools' names begin with.

    Two entries of an agent must not share it.
    """
    return f"{definition.name}__" if isinstance(definition, McpTool) else definition.name


def _walk(value: Any, path: tuple[str | int, ...]) -> None:
    if len(path) > _BODY_DEPTH_AT_MOST:
        raise ValueError(f"must not nest deeper than {_BODY_DEPTH_AT_MOST}")
    if isinstance(value, str):
        if not is_storable(value):
            raise wrong_at(path, "must not hold NUL or a lone surrogate")
        if "{{secret:" in value:
            raise wrong_at(path, "must not hold a secret: secrets go into headers")
    elif isinstance(value, float) and not math.isfinite(value):
        raise wrong_at(path, "must not be a number too large to keep")
    elif isinstance(value, dict):
        for name, inner in value.items():
            _walk(name, ())
            _walk(inner, (*path, name))
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _walk(inner, (*path, place))
