"""The ground of every shape: strict, camelCase, its texts such as Postgres holds."""

import math
from typing import Annotated, Any, Final

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import InitErrorDetails, PydanticCustomError

from chalicelib.texts import is_storable, printable

_DEPTH_AT_MOST: Final = 64
_UNSTORABLE: Final = "must not hold NUL or a lone surrogate"


def wrong_at(path: tuple[str | int, ...], reason: str) -> ValidationError:
    """An error that names a place inside of the value; pydantic puts the outer path before it."""
    told = PydanticCustomError("value_error", "{reason}", {"reason": reason})
    return ValidationError.from_exception_data(
        "body", [InitErrorDetails(type=told, loc=path, input=None)]
    )


def _storable(text: str) -> str:
    if not is_storable(text):
        raise ValueError(_UNSTORABLE)
    return text


def _plain_json(value: dict[str, Any]) -> dict[str, Any]:
    _walk(value, ())
    return value


def _walk(value: Any, path: tuple[str | int, ...]) -> None:
    if len(path) > _DEPTH_AT_MOST:
        raise ValueError(f"must not nest deeper than {_DEPTH_AT_MOST}")
    if isinstance(value, str) and not is_storable(value):
        raise wrong_at(path, _UNSTORABLE)
    if isinstance(value, float) and not math.isfinite(value):
        raise wrong_at(path, "must not be a number too large to keep")
    if isinstance(value, dict):
        for key, inner in value.items():
            within = (*path, printable(key))
            _walk(key, within)
            _walk(inner, within)
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            _walk(inner, (*path, place))


Text = Annotated[str, AfterValidator(_storable)]
Name = Annotated[Text, Field(min_length=1, max_length=200)]
JsonObject = Annotated[dict[str, Any], AfterValidator(_plain_json)]


class In(BaseModel):
    """A shape that comes in: strict, camelCase, no field but its own."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        alias_generator=to_camel,
        validate_by_alias=True,
        validate_by_name=False,
    )

    @model_validator(mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        # pydantic cannot name a field whose name is no Unicode
        for name in value if isinstance(value, dict) else ():
            if not is_storable(name):
                raise wrong_at((printable(name),), _UNSTORABLE)
        return value


class Out(BaseModel):
    """A shape that goes out, camelCase."""

    model_config = ConfigDict(alias_generator=to_camel, serialize_by_alias=True)
