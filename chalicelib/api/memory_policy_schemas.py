"""Shapes of what a tenant decides on its memory: its policy, and what waits for approval."""

from datetime import datetime
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from chalicelib.memory.candidates import Status
from chalicelib.memory.candidates import Tier as CandidateTier
from chalicelib.memory.distill.shapes import Origin, SourceKind
from chalicelib.memory.episodes import EpisodeKind
from chalicelib.memory.policy import DAYS_AT_MOST, Word
from chalicelib.shapes import In, Name

IDS_AT_MOST: Final = 100

_Days = Annotated[int, Field(ge=1, le=DAYS_AT_MOST)] | None


class _SnakeIn(In):
    # memory's own objects are snake_case, also where they come in whole
    model_config = ConfigDict(alias_generator=None, validate_by_name=True)


class PromoteIn(_SnakeIn):
    """What becomes of what a session came to, by its kind."""

    decision: Word = "auto"
    outcome: Word = "auto"
    commitment: Word = "auto"
    answer: Word = "auto"


class FormIn(_SnakeIn):
    """What becomes of facts that are read or that a model keeps, by their origin."""

    stated: Word = "auto"
    observed: Word = "auto"
    inferred: Word = "auto"


class KeepDaysIn(_SnakeIn):
    """For how many days each is kept; for good where there is no number."""

    sealed: _Days = None
    episodic: _Days = None
    semantic: _Days = None
    narrative: _Days = None
    audit: _Days = None


class PolicyIn(_SnakeIn):
    """A whole policy; what is left out is as it is by default."""

    timezone: Name = "UTC"
    promote: PromoteIn = PromoteIn()
    form: FormIn = FormIn()
    keep_days: KeepDaysIn = KeepDaysIn()


class PromoteOut(BaseModel):
    """What becomes of what a session came to, by its kind."""

    decision: Word
    outcome: Word
    commitment: Word
    answer: Word


class FormOut(BaseModel):
    """What becomes of facts that are read or that a model keeps, by their origin."""

    stated: Word
    observed: Word
    inferred: Word


class KeepDaysOut(BaseModel):
    """For how many days each is kept; null: for good."""

    sealed: int | None
    episodic: int | None
    semantic: int | None
    narrative: int | None
    audit: int | None


class PolicyOut(BaseModel):
    """The whole policy."""

    timezone: str
    promote: PromoteOut
    form: FormOut
    keep_days: KeepDaysOut


class CandidateOut(BaseModel):
    """What waits for approval, or did: a fact, which has a topic, or an episode, which has a kind.

    One that was denied says nothing any more; one that was approved says what the memory says that
    came of it, and nothing once that is forgotten. Without `memory_id` what was known stood.
    """

    id: str
    tier: CandidateTier
    kind: EpisodeKind | None = None
    topic: str | None = None
    content: str | None = None
    origin: Origin | None = None
    person_id: str | None = None
    group_id: str | None = None
    source_kind: SourceKind | None = None
    source_ref: str | None = None
    status: Status
    created_at: datetime
    decided_at: datetime | None = None
    memory_id: str | None = None


class CandidatesOut(BaseModel):
    """A page of candidates, newest first."""

    candidates: list[CandidateOut]


class CandidatesIn(In):
    """One decision on some candidates."""

    ids: Annotated[list[str], Field(min_length=1, max_length=IDS_AT_MOST)]
    decision: Literal["approve", "deny"]


class DecidedOut(BaseModel):
    """A candidate that is decided on. `memory_id` is what came of it, if it stands."""

    id: str
    status: Status
    memory_id: str | None = None


class DecisionsOut(BaseModel):
    """The candidates in the order in which they were named, each once."""

    decided: list[DecidedOut]
