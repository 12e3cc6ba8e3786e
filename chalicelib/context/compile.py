"""The one function that makes every prompt: from a session and its memory to what a model is told.

Pure: the same inputs give the same prompt, byte for byte. What seldom changes comes first (who the
agent is, the summary, the turns so far), so that what a provider keeps of it holds; what the memory
knows for this turn, the execution tree, the pins and the time stand behind, before the newest
message.

Of a budget that is too small the first to go are episodes, then facts, then the narrative, then the
oldest turns, then the summary. The tree, the pins and the newest message stay whatever happens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

import orjson

from chalicelib.context.blocks import (
    Block,
    group_entries,
    make_block,
    model_message,
    shorten_block,
)
from chalicelib.context.given import Asked, Ground
from chalicelib.context.ledger import FULL, SHARE, Ledger
from chalicelib.context.pins import render_pins
from chalicelib.context.recalled import recall
from chalicelib.context.shapes import Dropped, Section
from chalicelib.context.summary import render_summary
from chalicelib.errors import TooLarge
from chalicelib.memory.injection import NOTHING, Recollection
from chalicelib.memory.notes import quote
from chalicelib.providers import ModelMessage
from chalicelib.tools.excerpt import excerpt

_EXCERPT_AT_LEAST: Final = 400


@dataclass(frozen=True, kw_only=True)
class Compiled:
    """A prompt in its parts. `fixed` are the tokens of all that is no block.

    `before` and `behind` are its sections without the blocks', in the order in which they are read;
    `factor` is what estimates are multiplied with.
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
    ledger = Ledger(factor=factor, budget=budget)
    pending = orjson.loads(asked.pending)
    ledger.before += _instructions(ledger, ground, asked, persona)
    standing = _standing(ledger, ground, tree_sources)
    hint = ledger.section("system", "turn_hint", asked.turn_hint or "", alone=True)
    fixed = sum(one.tokens for one in (*ledger.before, *standing, hint))
    newest = _newest(ledger, pending, room=budget - fixed)
    messages = tuple(message for _, message in newest)
    fixed += sum(map(ledger.count_new, messages))

    summary = ledger.section("working", "summary", render_summary(ground.summary or ""), alone=True)
    turns = group_entries(orjson.loads(ground.history))
    last = None if messages or not turns else _last(ledger, turns.pop(), room=budget - fixed)
    needed = last.tokens if last else 0
    if fixed + needed > budget:
        raise _too_large(needed, budget - fixed)
    if fixed + needed + summary.tokens > budget:
        ledger.drop("working", ["summary"], FULL)
        summary = replace(summary, text="", tokens=0)
    fixed += summary.tokens
    ledger.before.append(summary)

    kept = _fitting(ledger, turns, room=budget - fixed, last=last)
    room = budget - fixed - sum(one.tokens for one in kept)
    text = _text_of(messages, kept)
    told = recall(ledger, memory, text=text, room=room, facts_budget=facts_budget)
    ledger.behind += [*told, *standing]
    ledger.behind += _message_sections(ledger, newest)
    ledger.behind.append(hint)
    fixed += sum(one.tokens for one in told)
    if hint.text:
        messages = (*messages, ModelMessage(role="system", content=hint.text))
    return Compiled(
        system="\n\n".join(
            one.text
            for one in ledger.before
            if one.tier == "system" and one.kind != "tools" and one.text
        ),
        summary=summary.text,
        blocks=kept,
        notes="\n\n".join(one.text for one in (*told, *standing) if one.text),
        pending=messages,
        fixed=fixed,
        budget=budget,
        factor=ledger.factor,
        before=tuple(one for one in ledger.before if one.text),
        behind=tuple(one for one in ledger.behind if one.text),
        dropped=tuple(ledger.dropped),
    )


def _standing(ledger: Ledger, ground: Ground, tree_sources: Sequence[str]) -> list[Section]:
    """What stands in every prompt behind the turns so far, as part of one message."""
    pins = orjson.loads(ground.pins)
    pinned = [one["messageId"] for one in pins if "messageId" in one]
    clock = tell_time(ground.local_time, ground.timezone)
    return [
        ledger.section("execution", "tree", ground.tree, tree_sources),
        ledger.section("working", "pins", render_pins(pins), pinned),
        # the last of the notes: it stands for what their message takes
        ledger.section("system", "clock", clock, alone=True),
    ]


def _instructions(ledger: Ledger, ground: Ground, asked: Asked, persona: str) -> list[Section]:
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
        ledger.section("system", "persona", persona, alone=True),
        ledger.section("system", "capabilities", tools),
        ledger.section(
            "system", "profile", " ".join(profile), [ground.person_id] if ground.person_id else []
        ),
        ledger.section("system", "system_hint", asked.system_hint or ""),
        ledger.section("system", "tools", asked.tools_text),
    ]


def tell_time(moment: datetime, timezone: str) -> str:
    """`It is Tuesday, 1 December 2026, 06:30 (UTC).`"""
    return f"It is {moment:%A}, {moment.day} {moment:%B} {moment:%Y}, {moment:%H:%M} ({timezone})."


def _newest(
    ledger: Ledger, pending: list[dict[str, Any]], *, room: int
) -> list[tuple[dict[str, Any], ModelMessage]]:
    """The turn's own messages. Where they do not fit together, all but the newest are excerpts.

    Those that there is no room for at all are left out: the newest is what is asked now.
    """
    told = [(one, model_message(one)) for one in pending]
    counted = [ledger.count_new(message) for _, message in told]
    if not told or sum(counted) <= room:
        return told
    if counted[-1] > room:
        raise _too_large(counted[-1], room)
    left, others = room - counted[-1], len(told) - 1
    kept = {others: told[-1][1]}
    for place in sorted(range(others), key=lambda one: (counted[one], -one)):
        message, share = told[place][1], left // (others - len(kept) + 1)
        if counted[place] > share:
            message = _shortened(ledger, message, share)
        if (tokens := ledger.count_new(message)) <= left:
            kept[place] = message
            left -= tokens
        if kept.get(place) != told[place][1]:
            done = "shortened: " if place in kept else ""
            ledger.drop("working", [pending[place]["id"]], f"{done}{FULL}")
    return [(told[place][0], kept[place]) for place in sorted(kept)]


def _shortened(ledger: Ledger, message: ModelMessage, tokens: int) -> ModelMessage:
    """The message's head and tail in so many tokens; its pictures go."""
    message = replace(message, attachments=())
    limit = len(message.content)
    while ledger.count_new(message) > tokens:
        if limit <= _EXCERPT_AT_LEAST:
            # beside the newest there is no room even for its beginning
            return replace(message, content="[…]")
        limit = max(limit * 2 // 3, _EXCERPT_AT_LEAST)
        message = replace(message, content=excerpt(message.content, limit=limit))
    return message


def _last(ledger: Ledger, entries: list[dict[str, Any]], *, room: int) -> Block:
    """The turn that is gone on with: all that was said in it, of results what there is room for."""
    block = make_block(entries, ledger.count_message)
    if block.tokens > room:
        short = shorten_block(block, room, ledger.count_message, texts=False)
        if short.tokens <= room:
            ledger.drop("working", [block.turn_id], f"shortened: {FULL}")
            return short
    return block


def _fitting(
    ledger: Ledger, turns: Sequence[list[dict[str, Any]]], *, room: int, last: Block | None
) -> tuple[Block, ...]:
    """The newest turns that there is room for, before the `last`, which stays in any case.

    One that would fill all by itself is told in its beginnings and ends, the newest in more of it,
    or left out: neither what a tool gave nor a message that was refused for its length takes along
    what was said before. Else there is no gap.
    """
    share = ledger.share("turns")
    most, used = min(room, share), last.tokens if last else 0
    kept: dict[int, Block] = {}
    short: set[int] = set()
    for place in range(len(turns) - 1, -1, -1):
        block = make_block(turns[place], ledger.count_message)
        newest = last is None and place == len(turns) - 1
        whole, limit = block.tokens <= (most if newest else share), most if newest else share // 4
        if not whole:
            goal = most // 2 if newest else limit
            shorter = shorten_block(block, goal, ledger.count_message, texts=True)
            block = shorter if shorter.tokens <= limit else block
        if used + block.tokens <= most:
            kept[place] = block
            used += block.tokens
            short |= set() if whole else {place}
        elif block.tokens <= share:
            first = _stop(turns, place + 1, every=max(share // 2, 1))
            kept = {one: block for one, block in kept.items() if one >= first}
            break
    ids = [entries[0].get("turnId") or "" for entries in turns]
    ledger.drop("working", [ids[one] for one in sorted(short & set(kept))], f"shortened: {SHARE}")
    gone = [one for place, one in enumerate(ids) if place not in kept]
    ledger.drop("working", gone, SHARE if most < room else FULL)
    return (*(kept[place] for place in sorted(kept)), *([last] if last else ()))


def _stop(turns: Sequence[list[dict[str, Any]]], first: int, *, every: int) -> int:
    """The first place from this one on where so many bytes of the history are full once more.

    Turns go so many at once. Were it one a turn, no prompt would begin like the one before, and
    what a provider keeps of it would be of no use. Where there is none, it is `first`.
    """
    told = 0
    for place, entries in enumerate(turns):
        before = told
        told += sum(len((one["content"] or "").encode("utf-8", "replace")) for one in entries)
        if place + 1 >= first and told // every > before // every:
            return place + 1 if place + 1 < len(turns) else first
    return first


def _message_sections(
    ledger: Ledger, newest: Sequence[tuple[dict[str, Any], ModelMessage]]
) -> list[Section]:
    return [
        Section(
            tier="working",
            kind="message",
            text=told.content,
            tokens=ledger.count_new(told),
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
            f"The agent's own instructions, its tools, the execution tree and the pins take "
            f"{-room} tokens more than there are in the model's context, and the message about "
            f"{needed}.",
            code="context_too_large",
        )
    return TooLarge(
        f"The message has about {needed} tokens; there is room for {room} in the model's context.",
        code="message_too_large",
    )
