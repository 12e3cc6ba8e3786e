"""The quality set: short transcripts with the facts that must and must not come out of them.

One YAML file a theme, beside this one. A transcript has `people` (by a short key: name and handle),
its conversations in the order they are processed (`messages`, `at`, `group`, `model`), and what is
expected once all of them were read:

- `must`: a fact of the person `of` whose `topic: content` matches each pattern of `says`; no active
  fact of theirs may still match `supersedes`.
- `may`: right as well, and not demanded. What is neither is extra, which costs precision.
- `must_not`: no active fact (of the person `of`, where one is named) matches the pattern.

Patterns are regular expressions, looked for in any case. `of` is a person's key, `nobody` (the fact
is attached to no person) or `anyone`, which is the default. A message is `{<who>: <text>}` with a
person's key, `assistant` or `tool`, one minute after the one before unless it has its own `at`.

`model` is what a scripted model answers: items in the contract's shape, `line` being the number of
the message that says it, or a text as it came. An item with `bad` is one that the pipeline has to
stop, and says why; the mark itself is not part of the answer.
"""

import json
import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

HERE: Final = Path(__file__).parent
NOBODY: Final = "nobody"
ANYONE: Final = "anyone"
ROLES: Final = ("assistant", "tool")
# of a model's item; `bad` is ours
_ITEM_FIELDS: Final = frozenset(
    {"topic", "content", "confidence", "personHint", "occurredAt", "line", "inferred", "bad"}
)


def _pattern(text: str) -> str:
    try:
        re.compile(text)
    except re.error as exc:
        raise ValueError(f"{text!r} is no pattern: {exc}") from exc
    return text


Pattern = Annotated[str, AfterValidator(_pattern)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Someone(_Strict):
    """A person whom the tenant knows before anything is read. `handle` is `channel:handle`."""

    name: str
    handle: Annotated[str, Field(pattern=r"^[a-z]+:.+$")]


class Message(_Strict):
    """What `who` said: a person's key, `assistant` or `tool`."""

    who: str
    text: str
    at: datetime

    @property
    def role(self) -> Literal["user", "assistant", "tool"]:
        """The role of who said it."""
        if self.who == "assistant":
            return "assistant"
        return "tool" if self.who == "tool" else "user"


class Conversation(_Strict):
    """Messages that are ingested and distilled at once, and what a scripted model makes of them."""

    at: datetime
    group: str | None = None
    messages: tuple[Message, ...]
    model: tuple[dict[str, Any], ...] | str

    @model_validator(mode="before")
    @classmethod
    def _read(cls, given: dict[str, Any]) -> dict[str, Any]:
        at, read = given["at"], []
        for said in given["messages"]:
            own = dict(said)
            at = own.pop("at", at)
            [(who, text)] = own.items()
            read.append({"who": who, "text": text, "at": at})
            at += timedelta(minutes=1)
        return {**given, "messages": read}

    @property
    def answer(self) -> str:
        """What the scripted model says, as text."""
        if isinstance(self.model, str):
            return self.model
        items = [{k: v for k, v in one.items() if k != "bad"} for one in self.model]
        return json.dumps({"distillates": items}, ensure_ascii=False)

    @property
    def items(self) -> tuple[dict[str, Any], ...]:
        """The items of the answer; none where it is a text."""
        return () if isinstance(self.model, str) else self.model


class Expected(_Strict):
    """A fact: whose it is and what each of `says` finds in it."""

    of: str = ANYONE
    says: tuple[Pattern, ...]

    @model_validator(mode="before")
    @classmethod
    def _one_pattern(cls, given: dict[str, Any]) -> dict[str, Any]:
        says = given["says"]
        return {**given, "says": [says] if isinstance(says, str) else says}

    def matches(self, of: str, fact: str) -> bool:
        """Whether a fact of this person's, told as `topic: content`, is the one."""
        return self.of in (ANYONE, of) and all(found(one, fact) for one in self.says)


class Must(Expected):
    """A fact that must come out. `supersedes` is what it takes the place of."""

    supersedes: Pattern | None = None


class Transcript(_Strict):
    """One case of the set."""

    id: Annotated[str, Field(pattern=r"^[a-z]{2}-[a-z0-9-]+$")]
    language: Annotated[str, Field(pattern=r"^[a-z]{2}$")]
    theme: str
    why: str = ""
    people: dict[str, Someone]
    conversations: Annotated[tuple[Conversation, ...], Field(min_length=1)]
    must: tuple[Must, ...] = ()
    may: tuple[Expected, ...] = ()
    must_not: tuple[Expected, ...] = ()

    @model_validator(mode="before")
    @classmethod
    def _one_conversation(cls, given: dict[str, Any]) -> dict[str, Any]:
        fields = {one: given[one] for one in ("at", "group", "messages", "model") if one in given}
        if not fields:
            return given
        rest = {key: value for key, value in given.items() if key not in fields}
        return {**rest, "conversations": [fields]}

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        if not self.id.startswith(self.language + "-"):
            raise ValueError(f"{self.id}: an id begins with its language")
        if not (self.must or self.must_not or self.may):
            raise ValueError(f"{self.id}: expects nothing")
        whose = {*self.people, NOBODY, ANYONE}
        for expected in (*self.must, *self.may, *self.must_not):
            if expected.of not in whose:
                raise ValueError(f"{self.id}: no one is called {expected.of}")
        for talk in self.conversations:
            for said in talk.messages:
                if said.who not in self.people and said.who not in ROLES:
                    raise ValueError(f"{self.id}: no one is called {said.who}")
            for item in talk.items:
                self._check_item(item, lines=len(talk.messages))
        return self

    def _check_item(self, item: dict[str, Any], *, lines: int) -> None:
        if unknown := item.keys() - _ITEM_FIELDS:
            raise ValueError(f"{self.id}: an item has no {', '.join(sorted(unknown))}")
        if "line" in item and not 1 <= item["line"] <= lines:
            raise ValueError(f"{self.id}: there is no line {item['line']}")
        told = f"{item.get('topic')}: {item.get('content')}"
        wanted = any(all(found(p, told) for p in one.says) for one in (*self.must, *self.may))
        old = any(one.supersedes and found(one.supersedes, told) for one in self.must)
        if "bad" not in item and not (wanted or old):
            raise ValueError(f"{self.id}: {told!r} is neither expected nor marked as bad")

    @property
    def secret(self) -> bool:
        """Whether what it holds is not to be shown, even where it is invented."""
        return self.theme == "secrets"


def found(pattern: str, text: str) -> bool:
    """Whether a pattern is found in a text, whatever the case."""
    return re.search(pattern, text, re.IGNORECASE | re.DOTALL) is not None


@cache
def load_corpus() -> tuple[Transcript, ...]:
    """All transcripts by theme; raises ValueError if one is not as described above."""
    read = [one for path in sorted(HERE.glob("*.yaml")) for one in _load(path)]
    ids = [one.id for one in read]
    if twice := {one for one in ids if ids.count(one) > 1}:
        raise ValueError(f"these ids come twice: {', '.join(sorted(twice))}")
    return tuple(read)


def _load(path: Path) -> Iterator[Transcript]:
    for given in yaml.safe_load(path.read_text(encoding="utf-8")):
        yield Transcript.model_validate({**given, "theme": path.stem})
