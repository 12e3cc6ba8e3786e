"""Which message a fact rests on: one that a person wrote, never the assistant's or a tool's. Pure.

The rules, in their order:

1. A line that the model named must be a person's. A number that is no line's counts as none named.
2. What the fact says (its content, without the words that any fact is told with) is looked for in
   the lines. Where a person's message speaks in another's place ('Assistant: …' at the beginning of
   a line of it), that part counts as not theirs.
3. Words that only the assistant or a tool said may be as many as those that people said, and those
   of them that were told before the named line, where they could be taken from, must be fewer.
   Without a named line half as many are too many.
   What a named line says yes to (see `assent`) people said as well: it is what the assistant told
   in its conversation right before. Words of the question that it answers are not taken, unless it
   says no to that and the fact does not.
4. Without a named line it is the person's that shares most with content and topic; of equals that
   of the hinted person, then the latest. Where none shares a word, the model told it in its own: it
   is the last line of the hinted person, else of the only one who speaks; of several, of no one.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from chalicelib.memory.distill.assent import assents, denies, negates, question_of
from chalicelib.memory.distill.shapes import Chunk, Event, Item, Line
from chalicelib.memory.distill.spoken import spoken
from chalicelib.memory.distill.words import significant
from chalicelib.memory.handles import fold_name

_CONTENT: Final = 2  # what a shared word of the content is worth, beside one of the topic


@dataclass(frozen=True, kw_only=True, eq=False)
class _Heard:
    """The words of a chunk: of each line what its person said, and what the rest of it says."""

    said: dict[int, frozenset[str]]
    told: dict[int, frozenset[str]]
    all_said: frozenset[str]
    all_told: frozenset[str]


@dataclass(frozen=True)
class _Itself:
    """A chunk that equals itself alone: to compare two would be to compare all that they hold."""

    chunk: Chunk

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Itself) and other.chunk is self.chunk

    def __hash__(self) -> int:
        return id(self.chunk)


def find_evidence(item: Item, chunk: Chunk) -> Line | None:
    """The user line that the item rests on; None where it rests on none, and may not be kept."""
    lines = [line for line in chunk.lines if line.evidence]
    if not lines:
        return None
    heard = _hear(_Itself(chunk))
    content = significant(item.content)
    borrowed = (content & heard.all_told) - heard.all_said
    named = next((line for line in chunk.lines if line.number == item.line), None)
    if named is not None:
        if not named.evidence:
            return None
        return named if _may_rest(item, named, chunk, heard) else None
    if borrowed and 2 * len(borrowed) >= len(content & heard.all_said):
        return None
    topic = significant(item.topic)
    best = max(lines, key=lambda line: _rank(line, item, content, topic, heard))
    if (content | topic) & heard.said[best.number]:
        return best
    if topic & heard.all_told:
        return None
    return _last(lines, item)


def _rank(
    line: Line, item: Item, content: frozenset[str], topic: frozenset[str], heard: _Heard
) -> tuple[int, bool, int]:
    said = heard.said[line.number]
    shared = _CONTENT * len(content & said) + len((topic - content) & said)
    return shared, _is_hinted(item, line.event), line.number


def _last(lines: list[Line], item: Item) -> Line | None:
    for line in reversed(lines):
        if _is_hinted(item, line.event):
            return line
    speakers = {line.event.person_id for line in lines}
    return lines[-1] if len(speakers) == 1 else None


def _is_hinted(item: Item, event: Event) -> bool:
    if item.person_hint is None or event.person_name is None:
        return False
    return fold_name(item.person_hint) == fold_name(event.person_name)


def _may_rest(item: Item, line: Line, chunk: Chunk, heard: _Heard) -> bool:
    """Whether the item is not in words that others said, and this line's person did not."""
    content = significant(item.content)
    said, asked = heard.all_said, frozenset[str]()
    before = _right_before(line, chunk)
    if before is not None and before.role == "assistant":
        question = question_of(before.text)
        if assents(line.text, asked=bool(question)):
            said |= heard.told[before.number]
        elif not denies(line.text) or negates(item.content):
            asked = significant(question)
    borrowed = (content & heard.all_told) - said
    earlier = (told for number, told in heard.told.items() if number < line.number)
    taken = borrowed.intersection(frozenset().union(*earlier) - asked)
    shared = len(content & said)
    return len(borrowed) <= shared and (not taken or len(taken) < shared)


def _right_before(line: Line, chunk: Chunk) -> Line | None:
    """The line before this one, in its conversation."""
    earlier = chunk.lines[: chunk.lines.index(line)]
    here = _conversation(line.event)
    return next((one for one in reversed(earlier) if _conversation(one.event) == here), None)


def _conversation(event: Event) -> tuple[str | None, ...]:
    return event.session_id, event.group_id, event.channel


@lru_cache(maxsize=2)  # all items of a chunk come one after another
def _hear(itself: _Itself) -> _Heard:
    said, told = {}, {}
    for line in itself.chunk.lines:
        own = spoken(line.text) if line.evidence else ""
        words = significant(line.text)
        said[line.number] = significant(own) if own != line.text else words
        told[line.number] = words - said[line.number]
    return _Heard(
        said=said,
        told=told,
        all_said=frozenset().union(*said.values()),
        all_told=frozenset().union(*told.values()),
    )
