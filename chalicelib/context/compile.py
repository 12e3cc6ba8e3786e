"""The one function that makes every prompt: from a session and its memory to what a model is told.

Pure: the same inputs give the same prompt, byte for byte. What seldom changes comes first (who the
agent is, the summary, the turns so far), so that what a provider keeps of it holds; what the memory
knows for this turn, the execution tree, the pins and the time stand behind, before the newest
message.

Of a budget that is too small the first to go are episodes, then facts, then the narrative, then the
oldest turns, then the summary. The tree, the pins and the newest message stay whatever happens.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

import orjson

from chalicelib.context.blocks import Block, make_blocks, model_message
from chalicelib.context.given import Asked, Ground
from chalicelib.context.pins import render_pins
from chalicelib.context.shapes import Dropped, Section, Tier
from chalicelib.context.summary import render_summary
from chalicelib.errors import TooLarge
from chalicelib.memory.episode_notes import choose_episodes, rank_episodes, render_episodes
from chalicelib.memory.injection import NOTHING, Recollection
from chalicelib.memory.narrative.telling import render_narrative
from chalicelib.memory.notes import choose_notes, quote, render_notes
from chalicelib.providers import ModelMessage
from chalicelib.providers.counting import estimate_message, estimate_tokens
from chalicelib.tools.excerpt import excerpt

FACTS: Final = 800
"""Tokens of facts in a prompt, where the agent says nothing else."""

EPISODES: Final = 600
NARRATIVE: Final = 400

_SHARES: Final = {"turns": 0.7, "facts": 0.2, "episodes": 0.1, "narrative": 0.1}
"""The most of the budget that each may take, so that none crowds out the others."""

_OVERHEAD: Final = 8  # of a message, whatever it holds
_EXCERPT_AT_LEAST: Final = 400
_FULL: Final = "the budget is used up"
_SHARE: Final = "its share of the budget is used up"


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A prompt in its parts. `fixed` are the tokens of all that is no block.

    `factor` is what estimates are multiplied with; `sections` do not include the blocks'.
    """

    system: str
    summary: str
    blocks: tuple[Block, ...]
    notes: str
    pending: tuple[ModelMessage, ...]
    fixed: int
    budget: int
    factor: float
    before: tuple[Section, ...]
    behind: tuple[Section, ...]
    dropped: tuple[Dropped, ...]

    @property
    def tokens(self) -> int:
        """What the whole prompt is thought to count."""
        return self.fixed + sum(one.tokens for one in self.blocks)


@dataclass(kw_only=True)
class _Work:
    factor: float
    budget: int
    before: list[Section] = field(default_factory=list)
    behind: list[Section] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)

    def count(self, text: str) -> int:
        return math.ceil((estimate_tokens(text) + 1) * self.factor) if text else 0

    def count_message(self, message: ModelMessage) -> int:
        return math.ceil(estimate_message(message) * self.factor)

    def count_new(self, message: ModelMessage) -> int:
        """Of what no provider has counted yet: it may be of another kind than what was said."""
        return math.ceil(estimate_message(message) * max(1.0, self.factor))

    def section(
        self, tier: Tier, kind: str, text: str, sources: Sequence[str] = (), *, alone: bool = False
    ) -> Section:
        """A part; `alone` where it is a message of its own, which takes something by itself."""
        tokens = self.count(text) + (math.ceil(_OVERHEAD * self.factor) if alone and text else 0)
        return Section(tier=tier, kind=kind, text=text, tokens=tokens, sources=tuple(sources))

    def drop(self, tier: Tier, ids: Sequence[str], reason: str) -> None:
        self.dropped += [Dropped(tier=tier, id=one, reason=reason) for one in ids]

    def share(self, name: str) -> int:
        return int(self.budget * _SHARES[name])


def compile_context(
    ground: Ground,
    asked: Asked,
    *,
    persona: str,
    budget: int,
    model: str | None = None,
    memory: Recollection = NOTHING,
    facts_budget: int | None = None,
    tree_sources: Sequence[str] = (),
) -> Compiled:
    """The prompt of a turn, or of one that might come. `budget` is in tokens, of all that goes in.

    `model` is the first of the chain: what it was last seen to count is taken into account. Raises
    TooLarge where what may not be left out does not fit.
    """
    factor = ground.calibration if ground.counted_model in (None, model) else 1.0
    work = _Work(factor=factor, budget=budget)
    history = orjson.loads(ground.history)
    pins = orjson.loads(ground.pins)
    pending = orjson.loads(asked.pending)
    work.before += _instructions(work, ground, asked, persona)
    standing = [
        work.section("execution", "tree", ground.tree, tree_sources),
        work.section(
            "working", "pins", render_pins(pins), [p["messageId"] for p in pins if "messageId" in p]
        ),
        # the notes' last part, as which it stands for their message
        work.section("system", "clock", tell_time(ground.local_time, ground.timezone), alone=True),
    ]
    hint = work.section("system", "turn_hint", asked.turn_hint or "", alone=True)
    fixed = sum(one.tokens for one in (*work.before, *standing, hint))
    newest = _newest(work, pending, room=budget - fixed)
    messages = tuple(message for _, message in newest)
    fixed += sum(map(work.count_new, messages))

    summary = work.section("working", "summary", render_summary(ground.summary or ""), alone=True)
    blocks = make_blocks(history, work.count_message)
    needed = blocks[-1].tokens if blocks and not messages else 0
    if fixed + needed > budget:
        raise _too_large(needed, budget - fixed)
    if fixed + needed + summary.tokens > budget:
        work.drop("working", ["summary"], _FULL)
        summary = replace(summary, text="", tokens=0)
    fixed += summary.tokens
    work.before.append(summary)

    kept = _fitting(work, blocks, room=budget - fixed, newest=not messages)
    room = budget - fixed - sum(one.tokens for one in kept)
    text = _text_of(messages, kept)
    told = _memory(work, memory, text=text, room=room, facts_budget=facts_budget)
    work.behind += [*told, *standing]
    work.behind += _message_sections(work, newest)
    work.behind.append(hint)
    fixed += sum(one.tokens for one in told)
    parts = [one.text for one in (*told, *standing) if one.text]
    if hint.text:
        messages = (*messages, ModelMessage(role="system", content=hint.text))
    return Compiled(
        system="\n\n".join(
            one.text
            for one in work.before
            if one.tier == "system" and one.kind != "tools" and one.text
        ),
        summary=summary.text,
        blocks=kept,
        notes="\n\n".join(parts),
        pending=messages,
        fixed=fixed,
        budget=budget,
        factor=work.factor,
        before=tuple(one for one in work.before if one.text),
        behind=tuple(one for one in work.behind if one.text),
        dropped=tuple(work.dropped),
    )


def _instructions(work: _Work, ground: Ground, asked: Asked, persona: str) -> list[Section]:
    """Who the agent is, what it may use and whom it talks to: the same from turn to turn."""
    tools = f"Tools you may use here: {', '.join(asked.tools)}." if asked.tools else ""
    profile = []
    if ground.person_name:
        profile.append(f"The user is called {quote(ground.person_name, 80)}.")
    if ground.group_id:
        profile.append(
            f"This conversation belongs to the group {quote(ground.group_id, 80)}; all of it may "
            "read along."
        )
    return [
        work.section("system", "persona", persona, alone=True),
        work.section("system", "capabilities", tools),
        work.section(
            "system", "profile", " ".join(profile), [ground.person_id] if ground.person_id else []
        ),
        work.section("system", "system_hint", asked.system_hint or ""),
        work.section("system", "tools", asked.tools_text),
    ]


def tell_time(moment: datetime, timezone: str) -> str:
    """`It is Tuesday, 1 December 2026, 06:30 (UTC).`"""
    return f"It is {moment:%A}, {moment.day} {moment:%B} {moment:%Y}, {moment:%H:%M} ({timezone})."


def _newest(
    work: _Work, pending: list[dict[str, Any]], *, room: int
) -> list[tuple[dict[str, Any], ModelMessage]]:
    """The turn's own messages. Where they do not fit together, all but the newest are excerpts.

    Those that there is no room for at all are left out: the newest is what is asked now.
    """
    told = [(one, model_message(one)) for one in pending]
    counted = [work.count_new(message) for _, message in told]
    if not told or sum(counted) <= room:
        return told
    if counted[-1] > room:
        raise _too_large(counted[-1], room)
    left, others = room - counted[-1], len(told) - 1
    kept = {others: told[-1][1]}
    for place in sorted(range(others), key=lambda one: (counted[one], -one)):
        message, share = told[place][1], left // (others - len(kept) + 1)
        if counted[place] > share:
            message = _shortened(work, message, share)
        if (tokens := work.count_new(message)) <= left:
            kept[place] = message
            left -= tokens
        if kept.get(place) != told[place][1]:
            done = "shortened: " if place in kept else ""
            work.drop("working", [pending[place]["id"]], f"{done}{_FULL}")
    return [(told[place][0], kept[place]) for place in sorted(kept)]


def _shortened(work: _Work, message: ModelMessage, tokens: int) -> ModelMessage:
    """The message's head and tail in so many tokens; its pictures go."""
    message = replace(message, attachments=())
    limit = len(message.content)
    while work.count_new(message) > tokens:
        if limit <= _EXCERPT_AT_LEAST:
            # beside the newest there is no room even for its beginning
            return replace(message, content="[…]")
        limit = max(limit * 2 // 3, _EXCERPT_AT_LEAST)
        message = replace(message, content=excerpt(message.content, limit=limit))
    return message


def _fitting(work: _Work, blocks: Sequence[Block], *, room: int, newest: bool) -> tuple[Block, ...]:
    """The newest turns that there is room for, without a gap; `newest` stays in any case."""
    most, used, first = min(room, work.share("turns")), 0, len(blocks)
    for place in range(len(blocks) - 1, -1, -1):
        used += blocks[place].tokens
        if used > most and not (newest and place == len(blocks) - 1):
            break
        first = place
    reason = _SHARE if most < room else _FULL
    work.drop("working", [one.turn_id for one in blocks[:first]], reason)
    return tuple(blocks[first:])


def _memory(
    work: _Work, memory: Recollection, *, text: str, room: int, facts_budget: int | None
) -> list[Section]:
    """Narrative, facts and episodes, each in its share of the room that the ones before it left."""
    narrative, room = _narrative(work, memory, room)
    most = FACTS if facts_budget is None else facts_budget
    allowed = min(most, work.share("facts"))
    chosen = choose_notes(memory.facts, text=text, budget=_raw(work, min(allowed, room)))
    facts = work.section("semantic", "facts", render_notes(chosen), [one.id for one in chosen])
    gone = {one.id for one in memory.facts} - {one.id for one in chosen}
    ids = [one.id for one in memory.facts if one.id in gone]
    work.drop("semantic", ids, _SHARE if allowed <= room else _FULL)
    room -= facts.tokens
    ranked = rank_episodes(memory.episodes, text=text)
    allowed = min(EPISODES, work.share("episodes"))
    told = choose_episodes(ranked, budget=_raw(work, min(allowed, room)))
    episodes = work.section("episodic", "episodes", render_episodes(told), [one.id for one in told])
    kept = {one.id for one in told}
    left_out = [one.id for one in ranked if one.id not in kept]
    work.drop("episodic", left_out, _SHARE if allowed <= room else _FULL)
    return [narrative, facts, episodes]


def _narrative(work: _Work, memory: Recollection, room: int) -> tuple[Section, int]:
    found = memory.narrative
    if found is None:
        return work.section("narrative", "narrative", ""), room
    allowed = min(NARRATIVE, work.share("narrative"))
    told = found
    while told.lines and work.count(render_narrative(told)) > min(allowed, room):
        told = replace(told, lines=told.lines[:-1])
    if len(told.lines) < len(found.lines):
        reason = _SHARE if allowed <= room else _FULL
        work.drop("narrative", [found.id], f"shortened: {reason}" if told.lines else reason)
    if not told.lines:
        return work.section("narrative", "narrative", ""), room
    sources = dict.fromkeys([found.id, *(one for line in told.lines for one in line.sources)])
    section = work.section("narrative", "narrative", render_narrative(told), list(sources))
    return section, room - section.tokens


def _raw(work: _Work, tokens: int) -> int:
    """What is left of tokens for what counts by the estimate alone."""
    return max(0, int(tokens / work.factor) - 2)


def _message_sections(
    work: _Work, newest: Sequence[tuple[dict[str, Any], ModelMessage]]
) -> list[Section]:
    return [
        Section(
            tier="working",
            kind="message",
            text=told.content,
            tokens=work.count_new(told),
            sources=(one["id"],) if one.get("id") else (),
        )
        for one, told in newest
    ]


def _text_of(messages: Sequence[ModelMessage], blocks: Sequence[Block]) -> str:
    """What the user says: in this turn or, where it only goes on, the last time."""
    said = [one.content for one in messages if one.role == "user"]
    if not said:
        told = [one for block in blocks for one in block.messages if one.role == "user"]
        said = [one.content for one in told[-1:]]
    return "\n".join(said)


def _too_large(needed: int, room: int) -> TooLarge:
    if room <= 0:
        return TooLarge(
            f"The agent's own instructions, its tools and the pins exceed the model's context by "
            f"{-room} tokens.",
            code="context_too_large",
        )
    return TooLarge(
        f"The message has about {needed} tokens; there is room for {room} in the model's context.",
        code="message_too_large",
    )
