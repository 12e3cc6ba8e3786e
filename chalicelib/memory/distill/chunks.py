"""Events of the timeline, gathered into what a model reads at once. Pure.

Events go in one by one, in the order of ingest. Those of a group share chunks, or else those of a
person, or else those of a session, or else those of a channel. No text is cut off: an event that is
too long for a chunk goes on in the next, and a message that is becomes several lines.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from chalicelib.memory.distill.shapes import Chunk, Event, Line, Role
from chalicelib.memory.handles import fold_name

CHUNKS_AT_MOST: Final = 50
CHARACTERS_AT_MOST: Final = 12_000

_AROUND: Final = 60  # what a line costs beside its text: its number, time and speaker
_INDENT: Final = "  "
_ROLES: Final[dict[str, Role]] = {"user": "user", "assistant": "assistant", "tool": "tool"}
_MARGIN: Final = re.compile(r"(user|assistant|tool):(?: |$)")
_NAMED: Final = re.compile(r"([^\n:]{1,200}):\s+(?=\S)")
_TOOLS: Final = ("tool", "tool_call", "tool_result", "function")
_BREAKS: Final = ("\n", "。", ". ", " ")

Key = tuple[str, str]


def lines_of(event: Event) -> list[tuple[Role, str]]:
    """Who said what in an event, without messages that are blank.

    A turn of a session is several messages, as `pal.told` wrote them; an event that has come in
    from outside is one, whatever it is called. What is forwarded is another's words: a tool's.
    """
    if event.kind == "turn" and event.channel == "session" and event.turn_id is not None:
        told = _told(event.content)
    else:
        told = [(_role(event), event.content)]
    spoken: list[tuple[Role, str]] = []
    for role, text in told:
        bare = _nameless(text, event.person_name) if role == "user" else text
        if bare.strip():
            spoken.append((role, bare))
    return spoken


def _told(content: str) -> list[tuple[Role, str]]:
    messages: list[tuple[Role, list[str]]] = []
    for line in content.split("\n"):
        if begins := _MARGIN.match(line):
            messages.append((_ROLES[begins[1]], [line[begins.end() :]]))
        elif messages:
            messages[-1][1].append(line.removeprefix(_INDENT))
        else:
            messages.append(("user", [line]))
    return [(role, "\n".join(lines)) for role, lines in messages]


def _role(event: Event) -> Role:
    metadata = event.metadata or {}
    given = metadata.get("role")
    if event.kind in _TOOLS or given in _TOOLS or metadata.get("forwarded"):
        return "tool"
    if event.direction == "outbound" or given in ("assistant", "system"):
        return "assistant"
    return "user"


def _nameless(text: str, name: str | None) -> str:
    """This text without the name of its speaker before it."""
    if name is None or not (named := _NAMED.match(text)):
        return text
    return text[named.end() :] if fold_name(named[1]) == fold_name(name) else text


@dataclass(frozen=True, kw_only=True)
class _Piece:
    role: Role
    text: str
    part: int = 1
    parts: int = 1

    @property
    def cost(self) -> int:
        return len(self.text) + _AROUND


@dataclass(kw_only=True)
class _Open:
    """A chunk that is being filled."""

    key: Key
    entries: list[tuple[Event, list[_Piece]]] = field(default_factory=list)
    cost: int = 0


class Slicer:
    """Gathers one slice: at most so many chunks, each of at most so many characters.

    A single event always fits, by itself, in however many chunks: a slice moves on.
    """

    def __init__(
        self,
        *,
        chunks_at_most: int = CHUNKS_AT_MOST,
        characters_at_most: int = CHARACTERS_AT_MOST,
    ) -> None:
        self._chunks_at_most = chunks_at_most
        self._characters = characters_at_most
        self._all: list[_Open] = []
        self._open: dict[Key, _Open] = {}
        self.full = False
        """Whether an event was refused; none is taken after it."""

    def add(self, event: Event) -> bool:
        """Whether the event is in the slice. If not, the slice is full: the next begins with it."""
        if self.full:
            return False
        key = _key(event)
        packed = self._pack(event, self._open.get(key))
        opened = len(packed) - (packed[0][0] is not None) if packed else 0
        if self._all and opened and len(self._all) + opened > self._chunks_at_most:
            self.full = True
            return False
        for chunk, pieces in packed:
            if chunk is None:
                chunk = self._open[key] = _Open(key=key)
                self._all.append(chunk)
            chunk.entries.append((event, pieces))
            chunk.cost += sum(piece.cost for piece in pieces)
        return True

    def chunks(self) -> list[Chunk]:
        """The chunks so far, by the place of their first event."""
        return sorted(map(_chunk, self._all), key=lambda one: (one.first, one.last))

    def _pack(self, event: Event, chunk: _Open | None) -> list[tuple[_Open | None, list[_Piece]]]:
        """The event's pieces by the chunk they go into, None for a new one."""
        pieces = list(_pieces(event, max(1, self._characters - _AROUND)))
        if not pieces:
            return []
        if chunk is not None and chunk.cost + sum(one.cost for one in pieces) <= self._characters:
            return [(chunk, pieces)]
        packed: list[tuple[_Open | None, list[_Piece]]] = []
        room = 0
        for piece in pieces:
            if not packed or piece.cost > room:
                packed.append((None, []))
                room = self._characters
            packed[-1][1].append(piece)
            room -= piece.cost
        return packed


def _key(event: Event) -> Key:
    if event.group_id is not None:
        return "group", event.group_id
    if event.person_id is not None:
        return "person", event.person_id
    if event.session_id is not None:
        return "session", event.session_id
    return "channel", event.channel


def _pieces(event: Event, longest: int) -> Iterator[_Piece]:
    for role, text in lines_of(event):
        parts = list(_parts(text, longest))
        for number, part in enumerate(parts, start=1):
            yield _Piece(role=role, text=part, part=number, parts=len(parts))


def _parts(text: str, longest: int) -> Iterator[str]:
    """A text in parts that put together are it; they end where a line, sentence or word does."""
    start = 0
    while len(text) - start > longest:
        least = start + longest * 3 // 4
        ends = (text.rfind(sign, least, start + longest) + len(sign) for sign in _BREAKS)
        end = next((end for end in ends if least < end <= start + longest), start + longest)
        yield text[start:end]
        start = end
    yield text[start:]


def _chunk(one: _Open) -> Chunk:
    entries = sorted(one.entries, key=lambda entry: (entry[0].occurred_at, entry[0].place))
    told = [(event, piece) for event, pieces in entries for piece in pieces]
    lines = tuple(
        Line(
            number=number,
            event=event,
            role=piece.role,
            text=piece.text,
            part=piece.part,
            parts=piece.parts,
        )
        for number, (event, piece) in enumerate(told, start=1)
    )
    kind, value = one.key
    names = [event.person_name for event, _ in entries if event.person_name is not None]
    return Chunk(
        lines=lines,
        person_id=value if kind == "person" else None,
        person_name=names[-1] if kind == "person" and names else None,
        group_id=value if kind == "group" else None,
    )
