"""What became of a transcript: the facts that came, are missing, or must not be there."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.distillation.corpus import NOBODY, Transcript, found


@dataclass(frozen=True, kw_only=True)
class Told:
    """An active fact: whose, by the key of the transcript's `people` (`nobody`: no person's)."""

    of: str
    topic: str
    content: str

    @property
    def text(self) -> str:
        """What patterns are looked for in."""
        return f"{self.topic}: {self.content}"


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """The facts of one transcript, judged. `superseded` is (how many held, of how many).

    `missing` are the places of the `must` that nothing matches; `stale` of those whose predecessor
    is still active; `forbidden` the facts that match a `must_not`, with its place; `extra` are
    neither demanded, nor allowed, nor forbidden.
    """

    transcript: Transcript
    facts: Sequence[Told]
    right: int
    missing: tuple[int, ...]
    stale: tuple[int, ...]
    forbidden: tuple[tuple[int, Told], ...]
    extra: tuple[Told, ...]

    @property
    def superseded(self) -> tuple[int, int]:
        """Changes of which only the newest is active, of all changes."""
        places = [n for n, one in enumerate(self.transcript.must) if one.supersedes]
        held = [n for n in places if n not in self.stale and n not in self.missing]
        return len(held), len(places)

    @property
    def fine(self) -> bool:
        """Whether all came that must, and nothing that must not."""
        return not (self.missing or self.stale or self.forbidden)


def judge(transcript: Transcript, facts: Sequence[Told]) -> Verdict:
    """The verdict on the active facts that a transcript left behind.

    A fact is right if it is demanded or allowed, matches no `must_not` and is not one that had to
    be superseded.
    """
    missing, stale, old = [], [], set[Told]()
    for place, must in enumerate(transcript.must):
        if not any(must.matches(one.of, one.text) for one in facts):
            missing.append(place)
        if must.supersedes:
            still = [
                one
                for one in facts
                if found(must.supersedes, one.text) and one.of in (must.of, NOBODY)
            ]
            if still:
                stale.append(place)
                old.update(still)
    forbidden = tuple(
        (place, one)
        for one in facts
        for place, never in enumerate(transcript.must_not)
        if never.matches(one.of, one.text)
    )
    wrong = old | {one for _, one in forbidden}
    wanted = (*transcript.must, *transcript.may)
    right = [
        one
        for one in facts
        if one not in wrong and any(each.matches(one.of, one.text) for each in wanted)
    ]
    return Verdict(
        transcript=transcript,
        facts=facts,
        right=len(right),
        missing=tuple(missing),
        stale=tuple(stale),
        forbidden=forbidden,
        extra=tuple(one for one in facts if one not in wrong and one not in right),
    )


@dataclass
class Tally:
    """Sums over verdicts."""

    transcripts: int = 0
    fine: int = 0
    facts: int = 0
    right: int = 0
    demanded: int = 0
    came: int = 0
    changes: int = 0
    held: int = 0
    forbidden: int = 0

    def add(self, verdict: Verdict) -> None:
        """Count one more."""
        held, changes = verdict.superseded
        self.transcripts += 1
        self.fine += verdict.fine
        self.facts += len(verdict.facts)
        self.right += verdict.right
        self.demanded += len(verdict.transcript.must)
        self.came += len(verdict.transcript.must) - len(verdict.missing)
        self.changes += changes
        self.held += held
        self.forbidden += len(verdict.forbidden)

    @classmethod
    def of(cls, verdicts: Iterable[Verdict]) -> "Tally":
        """All of these."""
        made = cls()
        for one in verdicts:
            made.add(one)
        return made

    @property
    def precision(self) -> float | None:
        """Of the active facts, those that are right; None without any."""
        return self.right / self.facts if self.facts else None

    @property
    def recall(self) -> float | None:
        """Of the facts that must come, those that came; None where none must."""
        return self.came / self.demanded if self.demanded else None

    @property
    def supersession(self) -> float | None:
        """Of the changes, those after which only the newest is active; None without any."""
        return self.held / self.changes if self.changes else None
