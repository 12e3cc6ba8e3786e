"""What the parts of a narrative hand to one another. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from chalicelib.memory.distill.shapes import Fact


@dataclass(frozen=True, kw_only=True)
class Line:
    """A line and the ids of the facts and episodes that it rests on.

    `plain`: written from one of them as it stands, by no model. `at` is the time of the newest,
    None for a line that was not read from the database.
    """

    text: str
    sources: tuple[str, ...]
    plain: bool = False
    at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Narrative:
    """A person's or a group's, with those of its lines that hold.

    `told_at` is when a model last wrote it, None: never; each change has another `version`.
    """

    id: str
    lines: tuple[Line, ...]
    updated_at: datetime
    person_id: str | None = None
    group_id: str | None = None
    version: int = 1
    told_at: datetime | None = None


def owners_of(facts: Iterable[Fact]) -> tuple[set[str], set[str]]:
    """The people and the groups whose narratives may rest on these facts.

    It is as `session_facts` tells: what was said in a group is the group's, and theirs whom it is
    about; what was said in private is the speaker's and, where no one said it, theirs too.
    """
    people: set[str | None] = set()
    groups: set[str | None] = set()
    for one in facts:
        groups.add(one.group_id)
        if one.group_id is not None or one.said_by is None:
            people.add(one.person_id)
        else:
            people.add(one.said_by)
    return {one for one in people if one is not None}, {one for one in groups if one is not None}
