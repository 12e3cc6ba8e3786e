"""What the memory knows, as sections of a prompt: the narrative, facts and episodes. Pure."""

from dataclasses import replace
from typing import Final

from chalicelib.context.ledger import FULL, SHARE, Ledger
from chalicelib.context.shapes import Section
from chalicelib.memory.episode_notes import choose_episodes, rank_episodes, render_episodes
from chalicelib.memory.injection import Recollection
from chalicelib.memory.narrative.telling import TOKENS_AT_MOST, render_narrative
from chalicelib.memory.notes import choose_notes, render_notes

FACTS: Final = 800
"""Tokens of facts in a prompt, where the agent says nothing else."""

EPISODES: Final = 600


def recall(
    ledger: Ledger, memory: Recollection, *, text: str, room: int, facts_budget: int | None
) -> list[Section]:
    """Narrative, facts and episodes, each in its share of the room that the ones before it left."""
    narrative, room = _narrative(ledger, memory, room)
    most = FACTS if facts_budget is None else facts_budget
    allowed = min(most, ledger.share("facts"))
    chosen = choose_notes(memory.facts, text=text, budget=_raw(ledger, min(allowed, room)))
    facts = ledger.section("semantic", "facts", render_notes(chosen), [one.id for one in chosen])
    gone = {one.id for one in memory.facts} - {one.id for one in chosen}
    ids = [one.id for one in memory.facts if one.id in gone]
    ledger.drop("semantic", ids, SHARE if allowed <= room else FULL)
    room -= facts.tokens
    ranked = rank_episodes(memory.episodes, text=text)
    allowed = min(EPISODES, ledger.share("episodes"))
    told = choose_episodes(ranked, budget=_raw(ledger, min(allowed, room)))
    episodes = ledger.section(
        "episodic", "episodes", render_episodes(told), [one.id for one in told]
    )
    kept = {one.id for one in told}
    left_out = [one.id for one in ranked if one.id not in kept]
    ledger.drop("episodic", left_out, SHARE if allowed <= room else FULL)
    return [narrative, facts, episodes]


def _narrative(ledger: Ledger, memory: Recollection, room: int) -> tuple[Section, int]:
    found = memory.narrative
    if found is None:
        return ledger.section("narrative", "narrative", ""), room
    allowed = min(TOKENS_AT_MOST, ledger.share("narrative"))
    told = found
    while told.lines and ledger.count(render_narrative(told)) > min(allowed, room):
        told = replace(told, lines=told.lines[:-1])
    if len(told.lines) < len(found.lines):
        reason = SHARE if allowed <= room else FULL
        ledger.drop("narrative", [found.id], f"shortened: {reason}" if told.lines else reason)
    if not told.lines:
        return ledger.section("narrative", "narrative", ""), room
    sources = dict.fromkeys([found.id, *(one for line in told.lines for one in line.sources)])
    section = ledger.section("narrative", "narrative", render_narrative(told), list(sources))
    return section, room - section.tokens


def _raw(ledger: Ledger, tokens: int) -> int:
    """What is left of tokens for what counts by the estimate alone."""
    return max(0, int(tokens / ledger.factor) - 2)
