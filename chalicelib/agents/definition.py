"""An agent's definition: what a caller may send, and how the engine reads what is stored.

What is stored is what was sent. So it is checked twice, and not alike: a caller is told of every
wrong field, while a turn gets on with what it can read of a definition that an older or newer
version has stored.
"""

import json
import logging
import unicodedata
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator

from chalicelib.shapes import In, Name, Text, wrong_at
from chalicelib.texts import is_storable, printable
from chalicelib.tools.definitions import McpTool, MicrovmTool, ToolDefinition, offered_name

_log = logging.getLogger(__name__)

_UNPRINTED: Final = ("Cc", "Zl", "Zp")  # control characters, line and paragraph separators


def _fits_a_path(name: str) -> str:
    if not name.strip():
        raise ValueError("must not be blank")
    if any(unicodedata.category(one) in _UNPRINTED for one in name):
        raise ValueError("must not hold a control character")
    if "/" in name:
        raise ValueError("must not hold a /")
    if name in (".", ".."):
        # clients resolve them, percent-encoded or not, before they send a path
        raise ValueError("must not be . or ..")
    return name


def _names_a_model(text: str) -> str:
    provider, colon, model = text.partition(":")
    if not (provider and colon and model) or not text.isprintable() or " " in text:
        raise ValueError("must be provider:model")
    return text


def _is_labelled(labels: Any) -> Any:
    # by hand, since pydantic puts a `[key]` behind the path of a wrong one
    for name in labels if isinstance(labels, dict) else ():
        if not (is_storable(name) and 1 <= len(name) <= 50):
            raise wrong_at((printable(name),), "must be a name of 1 to 50 characters")
    return labels


AgentName = Annotated[Name, AfterValidator(_fits_a_path)]
ModelName = Annotated[Text, Field(max_length=500), AfterValidator(_names_a_model)]
Chain = Annotated[list[ModelName], Field(min_length=1, max_length=8)]
_Label = Annotated[Text, Field(max_length=200)]


class _Part(In):
    """Where null is as good as absent, and absent is what it is stored as."""

    @model_validator(mode="before")
    @classmethod
    def _absent(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        optional = {
            field.alias or name
            for name, field in cls.model_fields.items()
            if not field.is_required()
        }
        return {key: one for key, one in value.items() if one is not None or key not in optional}


class AgentModels(_Part):
    """Chains of `provider:model`, tried in order; an empty one is the settings'."""

    primary: Chain = Field(default_factory=list)
    fast: Chain = Field(default_factory=list)


class AgentMemory(_Part):
    """What of the memory goes into the prompt, and when what was said is read for it.

    With `auto_save`, what leaves the context and what a session that ends has said is distilled at
    once, and not only at the next pass.
    """

    inject: bool = True
    auto_save: bool = False
    token_budget: Annotated[int, Field(ge=0, le=100_000)] | None = None


class AgentDefinition(_Part):
    """Who answers, with which models and tools; of an agent that no one has defined, all empty."""

    description: Annotated[Text, Field(max_length=2_000)] | None = None
    system_prompt: Annotated[Text, Field(max_length=100_000)] | None = None
    models: AgentModels = Field(default_factory=AgentModels)
    tools: Annotated[list[ToolDefinition], Field(max_length=32)] = Field(default_factory=list)
    isolation: Literal["none", "microvm"] = "none"
    context: Literal["full", "compact"] = "full"
    memory: AgentMemory = Field(default_factory=AgentMemory)
    max_tool_rounds: Annotated[int, Field(ge=1, le=5)] | None = None
    labels: Annotated[dict[str, _Label], BeforeValidator(_is_labelled), Field(max_length=50)] = (
        Field(default_factory=dict)
    )

    @model_validator(mode="after")
    def _holds_together(self) -> "AgentDefinition":
        seen: set[str] = set()
        for place, tool in enumerate(self.tools):
            if isinstance(tool, MicrovmTool) and self.isolation != "microvm":
                raise wrong_at(("tools", place, "kind"), 'takes an agent with isolation "microvm"')
            names = _offered_names(tool)
            if names & seen:
                raise wrong_at(("tools", place, "name"), "is the name of another tool")
            seen |= names
        return self


def definition_json(definition: AgentDefinition) -> dict[str, Any]:
    """The definition as it was sent, which is how it is stored: without what was left out."""
    return definition.model_dump(
        mode="json", by_alias=True, exclude_unset=True, include=set(AgentDefinition.model_fields)
    )


@lru_cache(maxsize=512)
def parse_definition(text: str) -> AgentDefinition:
    """The definition in a stored JSON text, less what this version cannot read; not to be changed.

    A tool goes as a whole: without a field such as its approval it might do harm.
    """
    stored = json.loads(text)
    left_out: set[str] = set()
    while isinstance(stored, dict):
        try:
            found = AgentDefinition.model_validate(stored)
        except ValidationError as exc:
            wrong = {_part_of(error["loc"]) for error in exc.errors(include_input=False)}
            left_out |= {".".join(map(str, part)) for part in wrong}
            stored = {
                name: _without(value, {part[1:] for part in wrong if part[:1] == (name,)})
                for name, value in stored.items()
                if (name,) not in wrong
            }
            continue
        if left_out:
            _log.warning(
                "an agent's definition is not read whole",
                extra={"action": "definition_unreadable", "left_out": sorted(left_out)},
            )
        return found
    return AgentDefinition()


def _part_of(place: tuple[int | str, ...]) -> tuple[int | str, ...]:
    """The smallest part, of those that can be left out, that a place of an error is in."""
    divided = place[:1] in (("tools",), ("models",))
    return place[:2] if divided and len(place) > 1 else place[:1]


def _without(value: Any, places: set[tuple[int | str, ...]]) -> Any:
    if isinstance(value, list):
        return [one for place, one in enumerate(value) if (place,) not in places]
    if isinstance(value, dict):
        return {name: one for name, one in value.items() if (name,) not in places}
    return value


def _offered_names(tool: ToolDefinition) -> set[str]:
    """What a model knows the tool by, as far as the definition tells."""
    name = offered_name(tool)
    listed = tool.tools if isinstance(tool, McpTool) else None
    return {name, *(f"{name}{one}" for one in listed or ())}
