"""What leaves a long conversation: whole turns from its beginning, and never half of a call."""

import random

import pytest

from chalicelib.context.summary import (
    INPUT_TOKENS,
    KEPT,
    PAST,
    Entry,
    count_messages,
    plan_cut,
)
from tests.support.talk import called, replied, result, said, talk, tool_turn, turn


def plan(entries: list[Entry], input_tokens: int = INPUT_TOKENS, past: int = PAST) -> int | None:
    return plan_cut(entries, input_tokens=input_tokens, past=past)


def test_nothing_leaves_up_to_forty_messages() -> None:
    """Lost if red: a model call behind replies that need none."""
    assert plan([]) is None
    assert plan(talk(20)) is None
    assert plan(talk(21)) == 12


def test_last_thirty_messages_stay() -> None:
    """Lost if red: what was just said."""
    for turns in range(21, 90):
        cut = plan(talk(turns))
        assert cut is not None
        assert count_messages(talk(turns)[cut:]) == KEPT


def test_tools_entries_count_for_nothing() -> None:
    """Lost if red: a conversation with tools that keeps a fraction of the thirty messages."""
    entries = [one for number in range(20) for one in tool_turn(number)]
    assert len(entries) == 80
    assert plan(entries) is None
    entries += turn(20)
    cut = plan(entries)
    assert cut == 6 * 4
    assert count_messages(entries[cut:]) == KEPT


def test_no_turn_is_halved() -> None:
    """Lost if red: an answer whose question is gone."""
    burst = [said(1, f"Part {number}.", id=f"msg_b{number}") for number in range(20)]
    entries = [*burst, replied(1, "All read."), *talk(15, first=2)]
    assert count_messages(entries) == 51
    assert plan(entries) == 21
    # the burst is among the last thirty: it stays as a whole, and so do more than thirty
    entries = [*talk(3, first=2), *burst, replied(1, "All read."), *talk(8, first=10)]
    assert plan(entries) == 6
    # and the conversation that is one turn stays
    assert plan([said(1, "Part.", id=f"msg_b{number}") for number in range(60)]) is None


def test_call_stays_with_the_result_that_came_later() -> None:
    """Lost if red: a result without its call, which vendors refuse on every turn that follows."""
    waits = called(3, "call_3", id="msg_a3")
    later = [result(9, "call_3"), *turn(9)]
    entries = [*talk(2), said(3, "Delete it."), waits, *talk(5, first=4), *later]
    entries += talk(15, first=10)
    # between the call and the turn that brought its result nothing may be cut; nor before the
    # result, which is that turn's beginning
    assert count_messages(entries) == 48
    assert plan(entries) == 4 + 2 + 10 + 3
    nearer = [*talk(2), said(3, "Delete it."), waits, *talk(15, first=4), *later]
    nearer += talk(5, first=20)
    assert plan(nearer) == 4


def test_call_that_waits_for_a_person_keeps_what_follows() -> None:
    """Lost if red: the outcome of an approval, which no one could tell the call of."""
    waits = called(3, "call_3", id="msg_a3")
    entries = [*talk(2), said(3, "Delete it."), waits, *talk(30, first=4)]
    assert plan(entries) == 4


def test_conversation_too_long_to_be_read_leaves_in_parts() -> None:
    """Lost if red: a summary that can never be asked for, and so a session that fails for ever."""
    text = "word " * 700
    entries = [one for number in range(60) for one in turn(number, text, text)]
    cut = plan(entries, input_tokens=8_000)
    assert cut is not None
    assert 2 <= cut < 20
    # what is left is still above forty: the rest leaves behind the next replies
    parts = 0
    while cut is not None:
        entries, parts = entries[cut:], parts + 1
        cut = plan(entries, input_tokens=8_000)
    assert parts > 3
    assert KEPT <= count_messages(entries) <= PAST


def test_one_turn_that_is_too_long_alone_leaves_all_the_same() -> None:
    """Lost if red: as above, for a turn with many results."""
    rounds = [
        one
        for number in range(40)
        for one in (called(1, f"c{number}"), result(1, f"c{number}", "x y " * 2_000))
    ]
    entries = [said(1, "Look at all."), *rounds, replied(1, "Done."), *talk(30, first=2)]
    assert plan(entries, input_tokens=8_000) == len(rounds) + 2


def test_asked_to_it_does_not_wait_for_forty() -> None:
    """Lost if red: room in a small window while 40 messages are not there yet."""
    assert plan(talk(18), past=KEPT) == 6
    assert plan(talk(15), past=KEPT) is None


@pytest.mark.parametrize("seed", range(20))
def test_any_mix_keeps_what_belongs_together(seed: int) -> None:
    """Lost if red: one of the rules above, for a mix that none of them thought of."""
    dice = random.Random(seed)
    entries: list[Entry] = []
    pending: list[str] = []
    for number in range(dice.randint(15, 60)):
        if pending and dice.random() < 0.4:
            entries.append(result(number, pending.pop()))
        entries.append(said(number, "word " * dice.randint(1, 400)))
        for place in range(dice.choice((0, 0, 1, 3))):
            entries += [called(number, f"c{number}.{place}"), result(number, f"c{number}.{place}")]
        if dice.random() < 0.1:
            pending.append(f"w{number}")
            entries.append(called(number, f"w{number}", id=f"msg_a{number}"))
        else:
            entries.append(replied(number, "word " * dice.randint(1, 200)))
    cut = plan(entries, input_tokens=dice.choice((4_000, 16_000)))
    if cut is None:
        return
    gone, kept = entries[:cut], entries[cut:]
    assert count_messages(kept) >= KEPT
    assert kept[0]["role"] == "user"
    assert not {one["turnId"] for one in gone} & {one["turnId"] for one in kept}
    calls = {call["id"] for one in gone for call in one.get("toolCalls", ())}
    assert calls == {one["toolCallId"] for one in gone if one["role"] == "tool"}
