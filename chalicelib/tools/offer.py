"""What an agent's tools are called, and what telling of them takes, before any is made. Pure."""

import json
from collections.abc import Sequence

from chalicelib.providers.base import ToolSpec
from chalicelib.tools.builtin import BUILTINS
from chalicelib.tools.definitions import (
    BuiltinTool,
    Definition,
    HttpTool,
    LambdaTool,
    McpTool,
    MicrovmTool,
)
from chalicelib.tools.microvm import CALLS


def offered_names(definitions: Sequence[Definition], *, read_only: bool) -> tuple[str, ...]:
    """The names of tools as a person would say them; of an MCP server the server's."""
    return tuple(one.name for one in definitions if not read_only or _read_only(one))


def told_tools(definitions: Sequence[Definition], *, read_only: bool) -> str:
    """The tools as JSON, nearly as providers are told of them; what MCP servers offer is not known.

    What it lacks, the requests make up for: see `sessions.prompt.Prompt.request`.
    """
    specs = [
        spec
        for one in definitions
        if (not read_only or _read_only(one)) and (spec := _spec(one)) is not None
    ]
    return specs_text(specs)


def specs_text(specs: Sequence[ToolSpec]) -> str:
    """These tools as JSON; empty for none."""
    if not specs:
        return ""
    return json.dumps(
        [{"name": s.name, "description": s.description, "parameters": s.parameters} for s in specs],
        ensure_ascii=False,
    )


def _spec(definition: Definition) -> ToolSpec | None:
    if isinstance(definition, BuiltinTool):
        builtin = BUILTINS[definition.name]
        text, schema = definition.description or builtin.description, dict(builtin.parameters)
    elif isinstance(definition, MicrovmTool):
        made = CALLS[definition.name]
        text, schema = definition.description or made.description, dict(made.parameters)
    elif isinstance(definition, HttpTool | LambdaTool):
        text, schema = definition.description or "", definition.parameters
    else:
        return None
    return ToolSpec(name=definition.name, description=text, parameters=schema)


def _read_only(definition: Definition) -> bool:
    if isinstance(definition, BuiltinTool):
        return BUILTINS[definition.name].read_only
    if isinstance(definition, MicrovmTool):
        return CALLS[definition.name].read_only
    return definition.read_only or isinstance(definition, McpTool)
