"""Vendors that fail at random: nothing is lost, nothing is half stored, no call is run twice."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import fields, replace

import pytest

from chalicelib.config import load_settings, variable
from tests.fakes.chaos import Chaos, sealed_by
from tests.support.chaos import SeenSession, SeenTurn, run_chaos
from tests.support.stack import Stack
from tests.support.verdict import Evidence, faults_of, tally

TURNS = 50
SEED = 10


def test_a_turn_is_answered_while_any_vendor_is_up(
    make_stack: Callable[..., Stack], caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: the answer, or the truth of it, whenever a vendor has a bad day."""
    with Chaos(SEED) as chaos:
        stack = make_stack(**_changes(chaos))
        sessions, broken = run_chaos(chaos, stack.http(), TURNS)
        evidence = Evidence(
            sessions=sessions,
            served=chaos.served,
            ran=chaos.ran,
            refused=chaos.refused,
            broken=broken,
        )
    told = tally(evidence)
    print(f"seed {SEED}: {told}")
    wrong = faults_of(evidence)
    assert not wrong, "\n".join(wrong[:20])
    # an adapter that stumbles over garbage says so at this level
    assert [one.getMessage() for one in caplog.records if one.levelno >= logging.ERROR] == []
    # and there was something to live through, which most turns did
    assert len(told.played) > 10
    assert told.played.total() > TURNS / 2
    assert told.completed > TURNS * 0.7
    _check_the_check(evidence)


def _check_the_check(evidence: Evidence) -> None:
    """Each way of not keeping a promise would have been seen in this very run."""
    for name, tampered in _tampered(evidence):
        assert faults_of(tampered) != [], name


def _tampered(evidence: Evidence) -> Iterator[tuple[str, Evidence]]:
    """The same evidence with one promise broken, by its name."""
    ran = list(evidence.ran)
    yield "a call twice", replace(evidence, ran=[*ran, ran[0]])
    yield "a call that was never run", replace(evidence, ran=ran[1:])
    yield "a call that no one asked for", replace(evidence, ran=[*ran, "one.m1-1.0.1.9"])
    session = next(one for one in evidence.sessions if len(one.messages) > 1)

    def stored(*messages: dict[str, object]) -> Evidence:
        return _instead(evidence, session, replace(session, messages=list(messages)))

    first, *rest = session.messages
    yield "a message lost", stored(*rest)
    yield "a message twice", stored(first, first, *rest)
    answer = next(one for one in session.messages if one["role"] == "assistant")
    others = [one for one in session.messages if one is not answer]
    yield "an answer lost", stored(*others)
    yield "half an answer", stored(*others, {**answer, "content": answer["content"][:-1]})
    yield "not active", _instead(evidence, session, replace(session, status="processing"))
    for one in evidence.sessions:
        for turn in one.turns.values():
            if turn.completed and not turn.tools:
                yield from _tampered_turn(evidence, one, turn)
                return


def _tampered_turn(
    evidence: Evidence, session: SeenSession, turn: SeenTurn
) -> Iterator[tuple[str, Evidence]]:
    def told(*events: object) -> Evidence:
        turns = session.turns | {turn.id: replace(turn, events=list(events))}
        return _instead(evidence, session, replace(session, turns=turns))

    *before, end = turn.events
    yield "no end", told(*before)
    yield "two ends", told(*before, end, end)
    delta = next(one for one in before if one.name == "message_delta")
    yield "a delta lost", told(*(one for one in before if one is not delta), end)
    error = {"error": "No one answered.", "code": "provider_unavailable"}
    yield "failed for nothing", told(*before, end._replace(name="message_error", data=error))
    tried = delta._replace(
        name="provider_attempt_failed", data={"model": "one", "error": "it broke"}
    )
    yield "went on after a delta", told(*before, tried, end)
    (said,) = [one for one in evidence.served if one.whole and one.said == end.data["text"]]
    assert sealed_by(said.said) == said.vendor
    yield "asked again", replace(evidence, served=[*evidence.served, said])
    yield "asked no one", replace(evidence, served=[o for o in evidence.served if o is not said])


def _instead(evidence: Evidence, old: SeenSession, new: SeenSession) -> Evidence:
    return replace(evidence, sessions=[new if one is old else one for one in evidence.sessions])


def _changes(chaos: Chaos) -> dict[str, object]:
    """The settings that `environ` says something of."""
    said = load_settings(chaos.environ())
    named = {one.name: one.metadata.get("variable") or variable(one.name) for one in fields(said)}
    told = [name for name, its in named.items() if its in chaos.environ()]
    return {one: getattr(said, one) for one in (*told, "named_providers")}
