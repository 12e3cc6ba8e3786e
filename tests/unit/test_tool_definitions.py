"""What may stand in an agent's `tools`, and where an error says it is wrong."""

from typing import Any

import pytest
from pydantic import Field, TypeAdapter, ValidationError

from chalicelib.shapes import In
from chalicelib.tools.definitions import (
    BuiltinTool,
    Definition,
    HttpTool,
    LambdaTool,
    McpTool,
    MicrovmTool,
    ToolDefinition,
    offered_name,
)
from chalicelib.tools.toolbox import KINDS


class Agent(In):
    """As an agent holds them."""

    tools: list[ToolDefinition] = Field(default_factory=list)


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
}
HTTP = {
    "kind": "http",
    "name": "weather",
    "method": "GET",
    "url": "https://api.example.com/v1/{city}?days={days}",
    "parameters": SCHEMA,
}
POST = {**HTTP, "method": "POST"}
MCP = {"kind": "mcp", "name": "notes", "url": "https://mcp.example.com/mcp"}
LAMBDA = {"kind": "lambda", "name": "sum", "function": "pal-tool-sum", "parameters": SCHEMA}
BUILTIN = {"kind": "builtin", "name": "current_time"}
MICROVM = {"kind": "microvm", "name": "run_code"}


def read(**tool: Any) -> Definition:
    """The one definition of an agent that has this one."""
    found: Definition = Agent.model_validate({"tools": [tool]}).tools[0]
    return found


def fault(tool: Any) -> tuple[str, str]:
    """Where this tool, an agent's second, is wrong, and why."""
    with pytest.raises(ValidationError) as raised:
        Agent.model_validate({"tools": [BUILTIN, tool]})
    error = raised.value.errors()[0]
    return ".".join(map(str, error["loc"])), error["msg"]


def nested(depth: int) -> dict[str, Any]:
    """A schema of this many arrays, one in another."""
    inner: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        inner = {"type": "array", "items": inner}
    return inner


@pytest.mark.parametrize(
    ("tool", "model"),
    [
        (BUILTIN, BuiltinTool),
        (HTTP, HttpTool),
        (MCP, McpTool),
        (LAMBDA, LambdaTool),
        (MICROVM, MicrovmTool),
    ],
)
def test_every_kind_is_read_with_cautious_defaults(
    tool: dict[str, Any], model: type[Definition]
) -> None:
    """Lost if red: a kind of tool, or a tool that is taken for harmless unsaid."""
    found = read(**tool)
    assert type(found) is model
    assert (found.approval, found.read_only, found.idempotent) == ("never", False, False)
    assert found.timeout is None


def test_what_every_kind_may_say_is_read() -> None:
    """Lost if red: approvals, read-only turns and timeouts."""
    found = read(
        **LAMBDA,
        description="Adds up.",
        approval="always",
        readOnly=True,
        idempotent=True,
        timeout=2,
    )
    assert (found.approval, found.read_only, found.idempotent) == ("always", True, True)
    assert (found.timeout, found.description) == (2.0, "Adds up.")


@pytest.mark.parametrize(
    "tool", [BUILTIN, HTTP, POST | {"body": {"q": "{city}"}}, MCP, LAMBDA, MICROVM]
)
def test_what_was_read_is_written_as_it_came(tool: dict[str, Any]) -> None:
    """Lost if red: a stored agent that is not the one that was saved."""
    agent = Agent.model_validate({"tools": [tool]})
    again = agent.model_dump(mode="json", by_alias=True, exclude_unset=True)
    assert again == {"tools": [tool]}
    assert Agent.model_validate_json(agent.model_dump_json(by_alias=True)) == agent


def test_the_union_has_a_schema_for_the_api_document() -> None:
    """Lost if red: tools in the API document, by which clients are made."""
    schema = TypeAdapter(ToolDefinition).json_schema()
    assert schema["discriminator"]["propertyName"] == "kind"
    assert set(schema["discriminator"]["mapping"]) == set(KINDS)


@pytest.mark.parametrize(
    ("change", "where", "why"),
    [
        pytest.param({"kind": "microvm"}, "name", "run_code", id="no-work-of-a-microvm"),
        pytest.param(
            {"kind": "soap"}, "kind", "builtin, http, mcp, lambda, microvm", id="unknown-kind"
        ),
        pytest.param({"kind": None}, "kind", "builtin, http, mcp, lambda, microvm", id="no-kind"),
        pytest.param(
            {"kind": ["http"]}, "kind", "builtin, http, mcp, lambda, microvm", id="odd-kind"
        ),
        pytest.param({"name": "two words"}, "name", "pattern", id="name-with-a-space"),
        pytest.param({"name": "é"}, "name", "pattern", id="name-not-ascii"),
        pytest.param({"name": "a" * 65}, "name", "pattern", id="name-too-long"),
        pytest.param({"name": "a\n"}, "name", "pattern", id="name-with-a-line-break"),
        pytest.param({"name": ""}, "name", "pattern", id="no-name"),
        pytest.param({"approval": "sometimes"}, "approval", "always", id="approval"),
        pytest.param({"readOnly": "yes"}, "readOnly", "boolean", id="read-only"),
        pytest.param({"timeout": 0}, "timeout", "greater than 0", id="timeout-0"),
        pytest.param({"timeout": 601}, "timeout", "600", id="timeout-too-long"),
        pytest.param({"timeout": float("nan")}, "timeout", "", id="timeout-nan"),
        pytest.param({"description": ""}, "description", "at least 1", id="empty-description"),
        pytest.param({"description": "\x00"}, "description", "NUL", id="nul"),
        pytest.param({"secret": "x"}, "secret", "not permitted", id="unknown-field"),
        pytest.param({"method": "HEAD"}, "method", "GET", id="method"),
        pytest.param({"url": "ftp://x.example/"}, "url", "https", id="scheme"),
        pytest.param({"url": "https://u:p@x.example/"}, "url", "user name", id="userinfo"),
        pytest.param({"url": "https:///x"}, "url", "name a host", id="no-host"),
        pytest.param({"url": "https://127.1/x"}, "url", "IPv4", id="odd-address"),
        pytest.param({"url": "https://x.example/#a"}, "url", "fragment", id="fragment"),
        pytest.param({"url": "https://{city}/"}, "url", "host", id="place-is-host"),
        pytest.param({"url": "https://{city}.example/"}, "url", "host", id="place-in-host"),
        pytest.param({"url": "https://x.example:{days}/"}, "url", "port", id="place-in-port"),
        pytest.param({"url": "{city}://x.example/"}, "url", "https", id="place-in-scheme"),
        pytest.param({"url": "https://{city}@x.example/"}, "url", "user", id="place-in-user"),
        pytest.param({"url": "https://x.example/{town}"}, "url", "{town}", id="place-unknown"),
        pytest.param({"url": "https://x.example/{a b}"}, "url", "braces", id="place-malformed"),
        pytest.param({"url": "https://x.example/{}"}, "url", "braces", id="place-empty"),
        pytest.param({"url": "https://x.example/{city"}, "url", "braces", id="place-open"),
        pytest.param(
            {"url": "https://x.example/?k={{secret:k}}"}, "url", "headers", id="secret-in-url"
        ),
        pytest.param({"url": "https://x.example/" + "a" * 2000}, "url", "2000", id="url-too-long"),
        pytest.param({"headers": {"Host": "x"}}, "headers.Host", "cannot be set", id="host"),
        pytest.param(
            {"headers": {"content-length": "1"}},
            "headers.content-length",
            "cannot be set",
            id="length",
        ),
        pytest.param({"headers": {"A B": "x"}}, "headers.A B", "name", id="header-name"),
        pytest.param({"headers": {"": "x"}}, "headers.", "name", id="header-no-name"),
        pytest.param({"headers": {"X:": "x"}}, "headers.X:", "name", id="header-colon"),
        pytest.param(
            {"headers": {"X": "a\r\nB: c"}}, "headers.X", "line breaks", id="header-line-break"
        ),
        pytest.param({"headers": {"X": "a", "x": "b"}}, "headers.x", "twice", id="header-twice"),
        pytest.param(
            {"headers": {"X": "{{secret:}}"}}, "headers.X", "{{secret:name}}", id="secret-no-name"
        ),
        pytest.param(
            {"headers": {"X": "{{ secret:a }}"}}, "headers.X", "{{secret:name}}", id="secret-blank"
        ),
        pytest.param(
            {"headers": {"X": "{{secret:a/b}}"}}, "headers.X", "{{secret:name}}", id="secret-name"
        ),
        pytest.param({"headers": {"X": 1}}, "headers.X", "string", id="header-number"),
        pytest.param({"body": {}}, "body", "POST, PUT and PATCH", id="body-of-a-get"),
        pytest.param(
            {"parameters": {"type": "array"}}, "parameters.type", "object", id="no-object"
        ),
        pytest.param({"parameters": {}}, "parameters.type", "object", id="no-type"),
        pytest.param({"parameters": []}, "parameters", "dictionary", id="schema-is-a-list"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], where: str, why: str) -> None:
    """Lost if red: an agent that is saved and fails each turn, or an error no one can find."""
    place, reason = fault(HTTP | change)
    assert place == f"tools.1.{where}"
    assert why in reason


@pytest.mark.parametrize(
    ("schema", "where", "why"),
    [
        pytest.param({"properties": {"a": {"type": "text"}}}, "properties.a.type", "", id="type"),
        pytest.param({"properties": {"a": 1}}, "properties.a", "JSON Schema", id="no-schema"),
        pytest.param(
            {"properties": {"a": {"maximum": 2**64}}}, "properties.a.maximum", "64 bits", id="large"
        ),
        pytest.param({"required": "city"}, "required", "JSON Schema", id="required"),
        pytest.param({"properties": {"a b": {}}}, "properties.a b", "letters", id="name"),
        pytest.param({"properties": {"a" * 65: {}}}, f"properties.{'a' * 65}", "64", id="long"),
        pytest.param({"anyOf": [{}]}, "anyOf", "top", id="any-of-on-top"),
        pytest.param(
            {"properties": {"a": {"$ref": "https://x.example/s.json"}}},
            "properties.a.$ref",
            "in this schema",
            id="remote-reference",
        ),
        pytest.param(
            {"properties": {"a": {"$ref": "other.json#/a"}}},
            "properties.a.$ref",
            "in this schema",
            id="relative-reference",
        ),
        pytest.param(
            {"properties": {"a": {"$ref": "#/$defs/gone"}}},
            "properties.a.$ref",
            "no place",
            id="dangling-reference",
        ),
        pytest.param({"$id": "https://x.example/"}, "$id", "not supported", id="id"),
        pytest.param(
            {"properties": {"a": {"$dynamicRef": "#a"}}},
            "properties.a.$dynamicRef",
            "not supported",
            id="dynamic-reference",
        ),
        pytest.param({"$ref": "#"}, "", "without end", id="endless"),
        pytest.param({"properties": {"a": nested(40)}}, "", "deeper", id="deep"),
        pytest.param({"description": "x" * 70_000}, "", "64 KB", id="large"),
        pytest.param(
            {"properties": {"a": {"allOf": [{}] * 1001}}}, "", "1000 objects", id="many-objects"
        ),
        pytest.param({"description": "\x00"}, "description", "NUL", id="nul-in-the-schema"),
        pytest.param({"maximum": float("inf")}, "maximum", "too large", id="infinite"),
    ],
)
def test_a_bad_schema_is_refused_where_it_is_bad(
    schema: dict[str, Any], where: str, why: str
) -> None:
    """Lost if red: a vendor's 400 on each turn of the agent, or a fetch of someone's file."""
    place, reason = fault(LAMBDA | {"parameters": {"type": "object"} | schema})
    assert place == f"tools.1.parameters.{where}".removesuffix(".")
    assert why in reason


@pytest.mark.parametrize(
    "schema",
    [
        {"$schema": "http://json-schema.org/draft-07/schema#", "properties": {}},
        {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"type": "string"}}},
        {"properties": {"kids": {"type": "array", "items": {"$ref": "#"}}}},
        {"properties": {"a": {"pattern": r"^\p{L}+(?=x)$", "format": "odd", "x-own": 1}}},
        {"properties": {"a": {"enum": ["x", None, 1]}}, "additionalProperties": False},
        {"properties": {"a": True}},
    ],
)
def test_an_ordinary_schema_is_taken(schema: dict[str, Any]) -> None:
    """Lost if red: schemas that people have."""
    read(**LAMBDA | {"parameters": {"type": "object"} | schema})


@pytest.mark.parametrize(
    ("body", "where", "why"),
    [
        pytest.param({"a": ["{town}"]}, "body", "{town}", id="unknown-place"),
        pytest.param({"a": {"b": "{{secret:k}}"}}, "body.a.b", "headers", id="secret-in-the-body"),
        pytest.param({"a": ["\x00"]}, "body.a.0", "NUL", id="nul"),
        pytest.param({"a": float("inf")}, "body.a", "too large", id="infinite"),
        pytest.param(nested(40), "body", "deeper", id="deep"),
        pytest.param(["x" * 70_000], "body", "64 KB", id="large"),
    ],
)
def test_a_bad_body_is_refused_where_it_is_bad(body: Any, where: str, why: str) -> None:
    """Lost if red: a request that can never be made."""
    place, reason = fault(POST | {"body": body})
    assert place == f"tools.1.{where}"
    assert why in reason


@pytest.mark.parametrize(
    "body",
    [
        {"q": "{city}", "n": [1, None, True, "{days} days in {city}"]},
        "{city}",
        [],
        {"query": "query { user(id: $id) { name } }", "literal": "{{town}}"},
        None,
    ],
)
def test_any_json_can_be_a_body(body: Any) -> None:
    """Lost if red: APIs that want another shape than the arguments'."""
    assert read(**POST | {"body": body}).body == body  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "url",
    [
        "http://tools.internal:9000/x",
        "https://[2606:4700::1111]/{city}",
        "https://x.example",
        "https://x.example?c={city}",
        "https://x.example/a%20b/{city}.json;v=1?c={city}&d={days}&e=%7B",
    ],
)
def test_a_url_that_may_be_fine_where_it_runs_is_taken(url: str) -> None:
    """Lost if red: hosts that the operator lets through, which are known at the call only."""
    read(**HTTP | {"url": url})


def test_headers_hold_texts_and_secrets() -> None:
    """Lost if red: tools that need a key."""
    headers = {"Authorization": "Bearer {{secret:api.key-1}}", "Accept": "a/b; {x}", "X-Empty": ""}
    assert read(**HTTP | {"headers": headers}).headers == headers  # type: ignore[attr-defined]
    assert read(**MCP | {"headers": headers}).headers == headers  # type: ignore[attr-defined]


def test_an_unknown_builtin_is_told_which_there_are() -> None:
    """Lost if red: a builtin's name that has to be guessed."""
    place, reason = fault({"kind": "builtin", "name": "curent_time"})
    assert place == "tools.1.name"
    assert "current_time" in reason


@pytest.mark.parametrize(
    "function",
    [
        "pal-tool-sum",
        "pal-tool-sum:live",
        "pal_tool:$LATEST",
        "arn:aws:lambda:eu-west-1:123456789012:function:pal-tool-sum",
        "arn:aws-us-gov:lambda:us-gov-west-1:123456789012:function:pal-tool-sum:3",
    ],
)
def test_a_function_is_named_as_lambda_names_it(function: str) -> None:
    """Lost if red: functions with versions, or of another account."""
    assert read(**LAMBDA | {"function": function}).function == function  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "function",
    [
        "",
        "a b",
        "../other",
        "sum:",
        "sum\n",
        "a" * 65,
        "123456789012:function:sum",
        "arn:aws:s3:::bucket",
        "arn:aws:lambda:eu-west-1:1:function:sum",
    ],
)
def test_what_is_no_function_is_refused(function: str) -> None:
    """Lost if red: a path or another service's name where a function is meant."""
    place, reason = fault(LAMBDA | {"function": function})
    assert (place, "Lambda function" in reason) == ("tools.1.function", True)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"url": "mcp.example.com"}, "url"),
        ({"url": "https://mcp.example.com/#x"}, "url"),
        ({"tools": [""]}, "tools.0"),
        ({"tools": "all"}, "tools"),
        ({"headers": {"Transfer-Encoding": "x"}}, "headers.Transfer-Encoding"),
    ],
)
def test_a_wrong_field_of_an_mcp_server_is_named(change: dict[str, Any], where: str) -> None:
    """Lost if red: a server that can never be reached, saved."""
    assert fault(MCP | change)[0] == f"tools.1.{where}"


def test_two_entries_can_be_told_apart_by_what_a_model_sees() -> None:
    """Lost if red: two tools of one name, of which a model could call but one."""
    assert offered_name(read(**HTTP)) == "weather"
    assert offered_name(read(**MCP)) == "notes__"


def test_something_that_is_no_object_is_no_tool() -> None:
    """Lost if red: a 500 for a list that holds a text."""
    with pytest.raises(ValidationError) as raised:
        Agent.model_validate({"tools": ["http"]})
    assert raised.value.errors()[0]["loc"][:2] == ("tools", 0)
