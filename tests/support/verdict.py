"""Whether a system that lived through a chaos kept its word: what was told against the wire. Pure.

Every function gives what is wrong as sentences, and nothing where all is well.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, zip_longest

from tests.fakes.chaos import SLOW, Chaos, Served, sealed_by
from tests.support.chaos import SeenSession, SeenTurn

_CALLED = ("tool_call_completed", "tool_call_failed")


@dataclass(kw_only=True)
class Evidence:
    """What everyone saw. `ran` are the ids of the tool calls that arrived, as often as they did."""

    sessions: Sequence[SeenSession]
    served: Sequence[Served]
    ran: Sequence[str]
    refused: Sequence[str] = ()
    broken: Sequence[str] = ()
    vendors: Sequence[str] = Chaos.vendors
    retries: int = 1

    def __post_init__(self) -> None:
        self.by_tag: dict[str, list[Served]] = defaultdict(list)
        for one in self.served:
            self.by_tag[one.tag].append(one)
        # answers that were whole at the wire and came too late for a machine that was busy
        self.unheard: set[Served] = set()
        for turn, served in self.turns():
            self.unheard.update(_unheard(turn, served))

    def turns(self) -> Iterator[tuple[SeenTurn, list[Served]]]:
        """Each turn with the requests that were made for it: those about its last message."""
        for session in self.sessions:
            for turn in session.turns.values():
                yield turn, self.by_tag[turn.tags[-1]]

    def whole(self, one: Served) -> bool:
        """Whether all of an answer came to be heard."""
        return one.whole and one not in self.unheard

    def fault_of(self, one: Served) -> str:
        """What went wrong with a try; empty for a whole answer."""
        return "whole but too late" if one in self.unheard else one.fault_name

    def tale(self, call: Iterable[Served]) -> str:
        """What became of each of these tries."""
        return ", ".join(f"{one.vendor}: {self.fault_of(one) or 'whole'}" for one in call)


def _unheard(turn: SeenTurn, served: list[Served]) -> Iterator[Served]:
    told = [(one["model"], one["error"]) for one in turn.data("provider_attempt_failed")]
    if turn.end is not None and served and not turn.completed:
        error = turn.end.data["error"]
        # else it says again what all had failed of
        if not any(one in error for _, one in told):
            told.append((served[-1].vendor, error))
    slow = Counter(model for model, error in told if "sent nothing for" in error)
    slow.subtract(one.vendor for one in served if one.fault_name in SLOW)
    for one, after in zip_longest(served, served[1:]):
        thrown_away = not turn.completed if after is None else after.round == one.round
        if one.whole and thrown_away and slow[one.vendor] > 0:
            slow[one.vendor] -= 1
            yield one


def faults_of(evidence: Evidence) -> list[str]:
    """All that is wrong; empty if the system kept its word."""
    wrong = [f"a talker broke: {one}" for one in evidence.broken]
    wrong += [f"a vendor refused a request: {one}" for one in evidence.refused]
    for session in evidence.sessions:
        wrong += [f"{session.id}: {one}" for one in _session(session)]
    for turn, served in evidence.turns():
        about = f"{turn.id} ({turn.tags[-1]})"
        wrong += [f"{about}: {one}" for one in (*_told(turn), *_outcome(evidence, turn, served))]
        for _, call in groupby(served, key=lambda one: one.round):
            wrong += [f"{about}: {one}" for one in _walk(evidence, list(call))]
    known = {turn.tags[-1] for turn, _ in evidence.turns()}
    strays = [one.tag for one in evidence.served if one.tag not in known]
    wrong += [f"a vendor was asked about {tag} as if a turn ended in it" for tag in strays]
    return [*wrong, *_calls(evidence)]


def _session(session: SeenSession) -> Iterator[str]:
    """Whether each message is stored once, and each turn's answer if it has one."""
    yield from session.strays
    if session.status != "active":
        yield f"is {session.status}"
    asked = Counter(
        (one["turnId"], one["content"].partition(" ")[0])
        for one in session.messages
        if one["role"] == "user"
    )
    posted = {(turn.id, tag) for turn in session.turns.values() for tag in turn.tags}
    for key in posted:
        if asked[key] != 1:
            yield f"message {key[1]} is stored {asked[key]} times in its turn"
    if set(asked) - posted:
        yield f"holds messages that no one posted there: {set(asked) - posted}"
    answers = defaultdict(list)
    for one in session.messages:
        if one["role"] != "user":
            answers[one["turnId"]].append(one)
    for turn in session.turns.values():
        stored = [one["content"] for one in answers.pop(turn.id, ())]
        told = [turn.end.data["text"]] if turn.completed and turn.end else []
        if stored != told:
            yield f"of {turn.tags[-1]} stored {stored}, told {told}"
    if answers:
        yield f"holds answers of turns that no one asked for: {answers}"


def _told(turn: SeenTurn) -> Iterator[str]:
    """Whether a turn's events make sense by themselves."""
    names = [one.name for one in turn.events]
    ends = [one for one in names if one in ("message_completed", "message_error")]
    if len(ends) != 1 or names[-1] != ends[0]:
        yield f"did not end once: {names}"
        return
    deltas = turn.data("message_delta")
    if [one["seq"] for one in deltas] != list(range(1, len(deltas) + 1)):
        yield "lacks a delta, or has one twice"
    if deltas and turn.tools:
        yield "was streamed, though it may call tools"
    if "provider_attempt_failed" in names[names.index("message_delta") :] if deltas else False:
        yield "went on to another try after a delta"
    assert turn.end is not None
    if turn.completed:
        text = "".join(one["delta"] for one in deltas)
        if not turn.tools and text != turn.end.data["text"]:
            yield f"was streamed as {text!r} and completed as {turn.end.data['text']!r}"
        if sealed_by(turn.end.data["text"]) is None:
            yield f"completed with what no vendor said: {turn.end.data['text']!r}"
    if any("sk-" in str(one.data) for one in turn.events):
        yield "told a key"


def _outcome(evidence: Evidence, turn: SeenTurn, served: list[Served]) -> Iterator[str]:
    """Whether a turn ended as it had to, by what its vendors really did."""
    if turn.end is None:
        return
    if not served:
        yield "had no vendor asked"
        return
    last = [one for one in served if one.round == served[-1].round]
    if turn.completed:
        if not evidence.whole(last[-1]) or last[-1].said != turn.end.data["text"]:
            yield f"completed, and its last try was {evidence.tale(last[-1:])} {last[-1].said!r}"
        return
    if any(evidence.whole(one) for one in last):
        yield f"failed though {last[-1].vendor} answered: {turn.end.data}"
    late = _broke_late(turn, last)
    spared = [name for name in evidence.vendors if name not in {one.vendor for one in last}]
    if spared and not late:
        yield f"failed, and {', '.join(spared)} never got a try: {evidence.tale(last)}"
    if not late and not all(f":{name} " in turn.end.data["error"] for name in evidence.vendors):
        yield f"does not tell why each vendor failed: {turn.end.data['error']}"


def _broke_late(turn: SeenTurn, served: list[Served]) -> bool:
    """Whether the vendor in use had begun to answer, so that there was no going on."""
    fault = served[-1].fault
    return (fault is not None and fault.late) or bool(turn.data("message_delta"))


def _walk(evidence: Evidence, call: list[Served]) -> Iterator[str]:
    """Whether a call of the model walked the chain by its rules; `call` is in order of arrival."""
    if any(evidence.whole(one) for one in call[:-1]):
        yield f"asked again after a whole answer: {evidence.tale(call)}"
    groups = [(name, list(tries)) for name, tries in groupby(call, key=lambda one: one.vendor)]
    if len({name for name, _ in groups}) < len(groups):
        yield f"came back to a vendor: {evidence.tale(call)}"
    for name, tries in groups:
        # the same request is sent anew where a kept connection turned out to be gone
        unheard = sum(one.reply is None for one in tries[:-1])
        if len(tries) > 1 + evidence.retries + unheard:
            yield f"tried {name} {len(tries)} times: {evidence.tale(call)}"
        if len({(one.key, one.raw) for one in tries}) > 1 or not tries[0].key:
            yield f"repeated to {name} what was not the same request"


def _calls(evidence: Evidence) -> Iterator[str]:
    """Whether each tool call that was asked for was run once, shown, and no other was run."""
    ran = Counter(evidence.ran)
    asked = {one for entry in evidence.served if evidence.whole(entry) for one in entry.calls}
    for one, times in ran.items():
        if times > 1:
            yield f"call {one} was run {times} times"
        if one not in asked:
            yield f"call {one} was run, and no whole answer asked for it"
    shown = {
        call["arguments"]["id"]: call
        for session in evidence.sessions
        for message in session.messages
        for call in message.get("toolCalls", ())
    }
    for turn, served in evidence.turns():
        wanted = [one for entry in served if evidence.whole(entry) for one in entry.calls]
        started = [one["arguments"]["id"] for one in turn.data("tool_call_started")]
        ended = [one for name in _CALLED for one in turn.data(name)]
        if sorted(started) != sorted(wanted) or len(ended) != len(wanted):
            yield f"{turn.id}: asked for {wanted}, started {started}, ended {len(ended)}"
        for one in wanted:
            if not ran[one]:
                yield f"{turn.id}: call {one} was never run"
            elif turn.completed and one not in shown:
                yield f"{turn.id}: call {one} is not shown on its message"
            elif turn.completed and not _right(shown[one], one):
                yield f"{turn.id}: call {one} shows {shown[one]}"


def _right(call: dict[str, str], call_id: str) -> bool:
    if call["status"] == "completed":
        return call["result"] == f"done: {call_id}"
    return call["status"] == "failed"


@dataclass(kw_only=True)
class Tally:
    """How it went. `attempts`: turns by the number of tries, where 1 is a turn without a failure.

    `struck` and `survived` count turns by the faults that happened in them.
    """

    turns: int = 0
    messages: int = 0
    completed: int = 0
    attempts: dict[bool, Counter[int]] = field(
        default_factory=lambda: {False: Counter(), True: Counter()}
    )
    played: Counter[str] = field(default_factory=Counter)
    struck: Counter[str] = field(default_factory=Counter)
    survived: Counter[str] = field(default_factory=Counter)
    broke_late: int = 0
    all_failed: int = 0
    left_out: int = 0
    rounds: int = 0
    calls: int = 0


def tally(evidence: Evidence) -> Tally:
    """The figures of a run; `left_out` counts model calls that did not begin with the first."""
    told = Tally(calls=len(evidence.ran))
    for turn, served in evidence.turns():
        told.turns += 1
        told.messages += len(turn.tags)
        told.completed += turn.completed
        failed = [one for one in served if not evidence.whole(one)]
        told.attempts[turn.tools][len(failed) + turn.completed] += 1
        told.played.update(evidence.fault_of(one) for one in failed)
        struck = {evidence.fault_of(one) for one in failed}
        told.struck.update(struck)
        if turn.completed:
            told.survived.update(struck)
        elif served and _broke_late(turn, served):
            told.broke_late += 1
        else:
            told.all_failed += 1
        first = {one.round: one.vendor for one in reversed(served)}
        told.rounds += len(first) - 1
        told.left_out += sum(name != evidence.vendors[0] for name in first.values())
    return told
