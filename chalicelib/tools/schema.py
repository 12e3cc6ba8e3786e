"""JSON Schemas of tools' arguments: which are good ones, and whether arguments fit.

A schema comes from a tenant or from somebody's MCP server, the arguments come from a model, and
both are checked on the loop that everyone's turns share. So a check spends from a budget, patterns
are run by an engine whose time is linear, and what could be slow in other ways (`unevaluated…`,
`format`, patterns over property names) is left to the tool itself. Nothing is fetched: a
reference leads to a place in the same schema.
"""

import json
import logging
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import cache, lru_cache
from itertools import islice
from typing import Any, Final

from chalicelib.tools.templates import ARGUMENT

_log = logging.getLogger(__name__)

Path = tuple[str | int, ...]

_BYTES_AT_MOST: Final = 64 * 1024
_DEPTH_AT_MOST: Final = 32
_WHOLE: Final = range(-(2**63), 2**64)  # what a request to a vendor can carry
_REASON_AT_MOST: Final = 300
_PROBLEMS_AT_MOST: Final = 5
# each is checked against the schema of schemas, which is slow
_OBJECTS_AT_MOST: Final = 1000
# about a second, when a schema is made to be slow
_BUDGET: Final = 150_000

_NO_REFERENCES: Final = frozenset({"$dynamicRef", "$recursiveRef", "$id"})
# vendors refuse a tool for these, and with it each turn of its agent
_NOT_ON_TOP: Final = ("allOf", "anyOf", "oneOf", "not", "enum", "const")
_UNCHECKED: Final = ("format", "patternProperties", "unevaluatedItems", "unevaluatedProperties")

_spent: ContextVar["_Budget"] = ContextVar("_spent")


def schema_fault(schema: dict[str, Any]) -> tuple[Path, str] | None:
    """What is wrong with a tool's `parameters`, and where in them; None if nothing is."""
    if len(json.dumps(schema, ensure_ascii=False).encode()) > _BYTES_AT_MOST:
        return (), f"must not be larger than {_BYTES_AT_MOST // 1024} KB"
    if _objects(schema) > _OBJECTS_AT_MOST:
        return (), f"must not hold more than {_OBJECTS_AT_MOST} objects"
    if schema.get("type") != "object":
        return ("type",), "must be `object`: a model calls tools with named arguments"
    if odd := next((word for word in _NOT_ON_TOP if word in schema), None):
        return (odd,), "must not stand at the top of a tool's schema"
    return _fault_within(schema, ()) or _invalid(schema) or _bad_name(schema) or _endless(schema)


def _objects(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + sum(map(_objects, value.values()))
    return sum(map(_objects, value)) if isinstance(value, list) else 0


def _fault_within(value: Any, path: Path) -> tuple[Path, str] | None:
    if len(path) > _DEPTH_AT_MOST:
        return (), f"must not nest deeper than {_DEPTH_AT_MOST}"
    if isinstance(value, list):
        inner: Iterator[tuple[str | int, Any]] = enumerate(value)
    elif isinstance(value, dict):
        inner = iter(value.items())
    elif type(value) is int and value not in _WHOLE:
        return path, "must be a number of at most 64 bits"
    else:
        return None
    for name, part in inner:
        if isinstance(part, str) and name in _NO_REFERENCES:
            return (*path, name), "is not supported: use `$ref` with `$defs`"
        if isinstance(part, str) and name == "$ref" and not part.startswith("#"):
            return (*path, name), "must lead to a place in this schema, such as #/$defs/item"
        if fault := _fault_within(part, (*path, name)):
            return fault
    return None


def _invalid(schema: dict[str, Any]) -> tuple[Path, str] | None:
    import referencing.exceptions
    from jsonschema import (  # type: ignore[import-untyped]
        Draft202012Validator,
        FormatChecker,
        SchemaError,
    )
    from referencing.jsonschema import DRAFT202012

    try:
        # without formats: a pattern need not be one of Python's
        Draft202012Validator.check_schema(schema, format_checker=FormatChecker(formats=()))
    except SchemaError as exc:
        return tuple(exc.absolute_path), f"is no JSON Schema: {_short(exc.message)}"
    resolver = referencing.Registry().resolver_with_root(DRAFT202012.create_resource(schema))
    for path, reference in _references(schema, ()):
        try:
            resolver.lookup(reference)
        except referencing.exceptions.Unresolvable:
            return path, "leads to no place in this schema"
    return None


def _references(value: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(value, dict):
        if isinstance(reference := value.get("$ref"), str):
            yield (*path, "$ref"), reference
        for name, part in value.items():
            yield from _references(part, (*path, name))
    elif isinstance(value, list):
        for place, part in enumerate(value):
            yield from _references(part, (*path, place))


def _bad_name(schema: dict[str, Any]) -> tuple[Path, str] | None:
    for name in schema.get("properties", {}):
        if not ARGUMENT.fullmatch(name):
            return ("properties", name), "must be named with 1 to 64 letters, digits, _, . and -"
    return None


def _endless(schema: dict[str, Any]) -> tuple[Path, str] | None:
    try:
        _check(Checker.validator(schema), {})
    except (RecursionError, _Spent):
        return (), "must not refer to itself without end"
    return None


class Checker:
    """Checks arguments against one schema, which may be any vendor's or server's."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self._schema = schema
        self._validator: Any = None

    @staticmethod
    def validator(schema: dict[str, Any]) -> Any:
        """A validator of the jsonschema package that spends from the budget of `_check`."""
        from referencing import Registry

        return _validator_class()(_plain(schema), registry=Registry())

    def problems(self, arguments: dict[str, Any]) -> list[str]:
        """What does not fit, as `place: reason`, five at most; a broken schema finds nothing."""
        try:
            if self._validator is None:
                self._validator = self.validator(self._schema)
            return _check(self._validator, arguments)
        except (RecursionError, _Spent):
            return ["arguments: are too large or too nested to be checked"]
        except Exception as exc:  # whoever offers such a schema has to check by himself
            _log.debug(
                "a tool's schema cannot be used",
                extra={"action": "tool_schema_broken", "error": type(exc).__name__},
            )
            return []


def _check(validator: Any, arguments: dict[str, Any]) -> list[str]:
    from jsonschema.exceptions import best_match  # type: ignore[import-untyped]

    token = _spent.set(_Budget(arguments))
    try:
        errors = islice(validator.iter_errors(arguments), _PROBLEMS_AT_MOST)
        # of an anyOf that does not fit: what is wrong with the branch that comes closest
        close = [best_match([error]) for error in errors]
    finally:
        _spent.reset(token)
    told = (f"{_place(error.absolute_path)}: {_short(error.message)}" for error in close)
    return list(dict.fromkeys(told))


def _place(path: Any) -> str:
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return _short(text.removeprefix(".")) or "arguments"


def _short(text: str) -> str:
    half = _REASON_AT_MOST // 2
    return text if len(text) <= _REASON_AT_MOST else f"{text[:half]} … {text[-half:]}"


class _Spent(Exception):
    """The budget is used up."""


class _Budget:
    """What a check may still do. The size of what a keyword looks at counts: errors print it."""

    def __init__(self, arguments: Any) -> None:
        self._left = _BUDGET
        self._sizes: dict[int, int] = {}
        self._measure(arguments)

    def _measure(self, value: Any) -> int:
        if isinstance(value, dict):
            size = sum(len(name) + self._measure(part) for name, part in value.items())
        elif isinstance(value, list):
            size = sum(map(self._measure, value))
        else:
            return len(value) if isinstance(value, str) else 1
        self._sizes[id(value)] = size
        return size

    def spend(self, value: Any, instance: Any) -> None:
        size = self._sizes.get(id(instance), len(instance) if isinstance(instance, str) else 1)
        self._left -= 1 + (len(value) if isinstance(value, dict | list) else 0) + size // 100
        if self._left < 0:
            raise _Spent


def _plain(value: Any) -> Any:
    # a dialect or a name of its own would have another validator, and another place to look in
    if isinstance(value, dict):
        return {
            name: _plain(part)
            for name, part in value.items()
            if not (name in {"$schema", "$id"} and isinstance(part, str))
        }
    return [_plain(part) for part in value] if isinstance(value, list) else value


@cache
def _validator_class() -> Any:
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend  # type: ignore[import-untyped]

    rules = dict(Draft202012Validator.VALIDATORS)
    others = rules["additionalProperties"]
    rules["additionalProperties"] = lambda validator, value, instance, schema: (
        None if "patternProperties" in schema else others(validator, value, instance, schema)
    )
    rules |= {"pattern": _pattern, "uniqueItems": _unique}
    rules |= {name: lambda validator, value, instance, schema: None for name in _UNCHECKED}
    return extend(Draft202012Validator, {name: _counted(rule) for name, rule in rules.items()})


def _counted(rule: Callable[..., Any]) -> Callable[..., Any]:
    def spend_and_check(validator: Any, value: Any, instance: Any, schema: Any) -> Any:
        _spent.get().spend(value, instance)
        return rule(validator, value, instance, schema)

    return spend_and_check


def _pattern(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Exception]:
    from jsonschema import ValidationError

    if isinstance(instance, str) and not _matches(value, instance):
        yield ValidationError(f"{instance!r} does not match {value!r}")


def _matches(pattern: str, text: str) -> bool:
    search = _search(pattern)
    return search is None or search(text)


@lru_cache(maxsize=256)
def _search(pattern: str) -> Callable[[str], bool] | None:
    """Whether a text holds this; None for what takes an engine that can hang (look-around)."""
    from pydantic_core import SchemaError, SchemaValidator, core_schema

    try:
        made = SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
    except SchemaError:
        return None
    return made.isinstance_python


def _unique(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Exception]:
    from jsonschema import ValidationError

    if value and isinstance(instance, list):
        seen = {json.dumps(item, sort_keys=True) for item in instance}
        if len(seen) < len(instance):
            yield ValidationError("the items must differ from each other")
