"""Narratives without a model: what is new, told as it stands, a dated line each. Pure."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from chalicelib.memory.episode_notes import KINDS
from chalicelib.memory.episodes import Episode
from chalicelib.memory.narrative.shapes import Line
from chalicelib.memory.narrative.telling import TEXT_AT_MOST, cost_of, fitting, lines_at_most
from chalicelib.memory.notes import Note, rank_notes, take_fitting, tell_day

_EPISODES_SHARE: Final = 0.6
_FRESH: Final = 120
"""Tokens that a model's lines make room for, where there is something new."""


def plain_lines(
    facts: Iterable[Note], episodes: Iterable[Episode], *, room: int | None = None
) -> tuple[Line, ...]:
    """The newest of what came about and the best of what is known, in the order of their days.

    Decisions and the like have the greater share, and what either leaves is the other's.
    """
    room = lines_at_most() if room is None else room
    came = sorted(episodes, key=lambda one: (one.occurred_at, one.id), reverse=True)
    told = [_of_episode(one) for one in came]
    known = [_of_fact(note) for note, _ in rank_notes(facts, text="")]
    chosen = take_fitting(told, int(room * _EPISODES_SHARE), cost=_cost)
    chosen += take_fitting(known, room - cost_of(chosen), cost=_cost)
    more = [one for one in told if one not in chosen]
    chosen += take_fitting(more, room - cost_of(chosen), cost=_cost)
    return tuple(sorted(chosen, key=_place))


def renew_lines(
    lines: Sequence[Line], facts: Sequence[Note], episodes: Sequence[Episode]
) -> tuple[Line, ...]:
    """A model's lines as far as there is room, and what is new behind them.

    The lines hold, and what is given is what has come since they were written; what one of them
    rests on is told. Plain lines are made anew, so that the oldest of them are the first to go.
    """
    kept = [one for one in lines if not one.plain]
    told = {source for one in kept for source in one.sources}
    facts = [one for one in facts if one.id not in told]
    episodes = [one for one in episodes if one.id not in told]
    wanted = cost_of(plain_lines(facts, episodes, room=_FRESH))
    stays = fitting(kept, lines_at_most() - wanted)
    return stays + plain_lines(facts, episodes, room=lines_at_most() - cost_of(stays))


def _cost(line: Line) -> int:
    return cost_of([line])


def _of_episode(one: Episode) -> Line:
    text = f"{tell_day(one.occurred_at)}, {KINDS[one.kind]}: {one.content}"
    return _line(text, one.id, one.occurred_at)


def _of_fact(note: Note) -> Line:
    about = f", about {note.name}" if note.name and not note.own else ""
    text = f"{tell_day(note.said_at)}{about}, {note.topic}: {note.content}"
    return _line(text, note.id, note.said_at)


def _line(text: str, source: str, at: datetime) -> Line:
    text = " ".join(text.split())
    if len(text) > TEXT_AT_MOST:
        text = text[: TEXT_AT_MOST - 1].rstrip() + "…"
    return Line(text=text, sources=(source,), plain=True, at=at)


def _place(line: Line) -> tuple[float, str]:
    assert line.at is not None
    return line.at.timestamp(), line.sources[0]
