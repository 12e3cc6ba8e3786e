"""Compaction on a real database: what the model sees gets short, and nothing else is touched."""

import json
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from chalicelib.context.compaction import Compactor
from chalicelib.context.summary import SUMMARY_TOKENS, Entry, count_messages, render_summary
from chalicelib.errors import ProviderUnavailable
from chalicelib.providers import Finished, Provider, TextDelta
from chalicelib.providers.counting import estimate_tokens
from tests.fakes.bedrock_driver import adapter, set_aws_variables
from tests.fakes.bedrock_server import FakeBedrock
from tests.fakes.bedrock_server import Reply as BedrockReply
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.http import HttpClient
from tests.support.links import Hang, Scripted, says
from tests.support.scripted import ScriptedProvider
from tests.support.stack import Stack
from tests.support.talk import called, replied, result, said, talk, tool_turn, turn

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
LEASE = "ours"
GOOD = "- The user plants beans; 12 beds are dug.\n- Open: who waters them?"


class Talk:
    """A session whose history tests write as they like, and its compaction."""

    def __init__(self, stack: Stack) -> None:
        self.stack, self.node = stack, stack.node
        made = self.node.run(self.node.services.sessions.create(stack.caller, agent_name="guide"))
        self.id: str = made["id"]
        self.lend(LEASE)

    def lend(self, lease: str) -> None:
        """Make the holder of this lease the session's worker."""
        self.stack.database.rows(
            "INSERT INTO pal.session_states (session_id, tenant_id, worker, work_until)"
            " VALUES (%s, %s, %s, now() + interval '1 hour') ON CONFLICT (session_id) DO UPDATE"
            " SET worker = excluded.worker, work_until = excluded.work_until",
            self.id,
            self.stack.tenant,
            lease,
        )

    def append(self, entries: list[Entry]) -> None:
        """What a turn's commit does to the history."""
        self.stack.database.rows(
            "UPDATE pal.sessions SET messages = messages || %s::jsonb WHERE id = %s",
            json.dumps(entries),
            self.id,
        )

    def start(self, provider: Provider | None, **more: Any) -> "Future[bool]":
        """Begin to compact."""
        services = self.node.services
        making = {name: more.pop(name) for name in ("input_tokens", "seconds") if name in more}
        compactor = Compactor(services.db, services.hub, **making)
        asked = {"tenant_id": self.stack.tenant, "session_id": self.id, "lease": LEASE, "now": NOW}
        return self.node.on.start(compactor.run(**{**asked, "provider": provider, **more}))

    def compact(self, provider: Provider | None, **more: Any) -> bool:
        return self.start(provider, **more).result(30)

    @property
    def entries(self) -> list[Entry]:
        """What the model sees."""
        query = "SELECT messages FROM pal.sessions WHERE id = %s"
        found: list[Entry] = self.stack.database.rows(query, self.id)[0][0]
        return found

    @property
    def summary(self) -> str | None:
        query = "SELECT summary FROM pal.sessions WHERE id = %s"
        found: str | None = self.stack.database.rows(query, self.id)[0][0]
        return found

    @property
    def state(self) -> tuple[int, int]:
        """(compactions, compact_at)."""
        query = "SELECT compactions, compact_at FROM pal.session_states WHERE session_id = %s"
        compactions, compact_at = self.stack.database.rows(query, self.id)[0]
        return compactions, compact_at

    @property
    def events(self) -> list[dict[str, Any]]:
        """The data of the `compacted` events."""
        rows = self.stack.database.rows(
            "SELECT data FROM pal.session_events WHERE session_id = %s AND kind = 'compacted'"
            " ORDER BY seq",
            self.id,
        )
        return [json.loads(one) for (one,) in rows]

    def untouched(self, entries: list[Entry], summary: str | None = None) -> bool:
        """Whether nothing came of it."""
        same = (self.entries, self.summary) == (entries, summary)
        return same and self.state[0] == 0 and self.events == []


@pytest.fixture
def talking(stack: Stack) -> Talk:
    return Talk(stack)


@pytest.fixture
def bedrock() -> Iterator[FakeBedrock]:
    """The service, which greets unless a test scripts it."""
    with FakeBedrock() as fake:
        yield fake


def openai(talking: Talk) -> Provider:
    """The chain of the settings, which leads to the fake."""
    chain = talking.node.services.models.chain(
        tenant_id=talking.stack.tenant, role="fast", own_keys=False, stand_in=False
    )
    return talking.node.run(chain)


def test_summary_takes_the_place_of_what_leaves(talking: Talk, provider: FakeOpenAI) -> None:
    """Lost if red: long conversations that stay cheap."""
    entries = talk(21)
    talking.append(entries)
    provider.script(Reply(pieces=[GOOD]))
    assert talking.compact(openai(talking))
    assert talking.entries == entries[12:]
    assert talking.summary == GOOD
    assert talking.state == (1, 0)
    tokens = estimate_tokens(render_summary(GOOD))
    told = {"sessionId": talking.id, "removed": 12, "kept": 30, "summaryTokens": tokens}
    assert talking.events == [told]
    assert not talking.compact(openai(talking)), "there is nothing more to do"
    assert len(provider.requests) == 1
    talking.append(talk(6, first=22))
    provider.script(Reply(pieces=["- All in one."]))
    assert talking.compact(openai(talking))
    assert provider.requests[-1].body["messages"][-1]["content"].count(json.dumps(GOOD)) == 1
    assert talking.summary == "- All in one."
    assert talking.state == (2, 0)


def test_forty_messages_ask_no_model(talking: Talk, provider: FakeOpenAI) -> None:
    """Lost if red: a model call behind each reply."""
    talking.append(talk(20))
    assert not talking.compact(openai(talking))
    assert provider.requests == []
    assert talking.compact(None, force=True), "but where the caller insists"
    assert count_messages(talking.entries) == 30


def test_transcript_keeps_every_message(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: what was said; a summary is of the context alone."""
    talking, http = Talk(stack), stack.http()
    for number in range(21):
        path = f"/v1/sessions/{talking.id}/messages"
        with_events = http.stream("POST", path, {"content": f"Message {number}."})
        with_events.read_until("message_completed")
        with_events.close()
    before = http.call("GET", f"/v1/sessions/{talking.id}").json
    assert len(before["messages"]) == 42
    talking.lend(LEASE)
    provider.script(Reply(pieces=["- 21 greetings."]))
    assert talking.compact(openai(talking))
    after = http.call("GET", f"/v1/sessions/{talking.id}").json
    assert after["messages"] == before["messages"]
    assert after["summary"] == "- 21 greetings."
    assert talking.entries[0]["content"] == "Message 6."


def test_readers_are_told(talking: Talk) -> None:
    """Lost if red: a console that shows when the context was cut."""
    http = talking.stack.http()
    with_events = http.stream("GET", f"/v1/sessions/{talking.id}/events")
    talking.append(talk(21))
    assert talking.compact(None)
    (event,) = with_events.read_until("compacted")[-1:]
    with_events.close()
    assert event.data["removed"] == 12
    assert event.data["kept"] == 30


def test_tools_history_is_summarised_on_bedrock(
    talking: Talk, bedrock: FakeBedrock, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Lost if red: compaction on Bedrock of whatever used a tool (PRV-8 b)."""
    set_aws_variables(monkeypatch, tmp_path)
    bedrock.script(BedrockReply(pieces=[GOOD]))
    talking.append([one for number in range(25) for one in tool_turn(number)])

    model = adapter(bedrock.base_url)
    assert talking.compact(model)
    talking.node.run(model.close())
    assert bedrock.refused == []
    assert len(bedrock.asked) == 1
    assert talking.summary == GOOD


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("All work and no play. " * 140_000, id="3-MB"),
        pytest.param("😀" * 100_000, id="400-KB-of-emoji"),
        pytest.param("x" * 1_000_000, id="1-MB-line"),
    ],
)
def test_giant_result_leaves_like_any_other(talking: Talk, text: str) -> None:
    """Lost if red: a session that fails on each turn after a giant result (CTX-2)."""
    talking.append([*tool_turn(0, text), *talk(21, first=1)])
    model = Scripted("one", says(GOOD))
    assert talking.compact(model)
    (request,) = model.asked
    (message,) = request.messages
    assert estimate_tokens(request.system + message.content) < 16_000
    assert "characters left out" in message.content
    assert all(one["role"] != "tool" for one in talking.entries)


# ── what fails, and what is refused ──────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param(Scripted("one", [ProviderUnavailable("It is down.")]), id="down"),
        pytest.param(
            Scripted("one", [TextDelta(text="- Ha"), ProviderUnavailable("Gone.")]), id="midway"
        ),
        pytest.param(Scripted("one", [Hang]), id="silent"),
    ],
)
def test_failing_model_changes_nothing_and_is_tried_again(talking: Talk, broken: Scripted) -> None:
    """Lost if red: half a conversation, at each outage of a provider."""
    entries = talk(21)
    talking.append(entries)
    assert not talking.compact(broken, seconds=0.2)
    assert talking.untouched(entries)
    assert talking.state == (0, 0)
    assert broken.left == 1, "it was let go of"
    assert talking.compact(Scripted("one", says(GOOD)))


def ends(reason: str, *texts: str) -> Scripted:
    """A model whose answer ends so."""
    end = Finished(reason=reason, provider="p", model="one")
    return Scripted("one", [*(TextDelta(text=one) for one in texts), end])


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(ends("stop"), id="empty"),
        pytest.param(ends("stop", " \n"), id="blank"),
        pytest.param(ends("stop", "- And so on, at length. " * 400), id="longer-than-its-input"),
        pytest.param(ends("refusal", "I cannot help with that."), id="refusal"),
        pytest.param(ends("content_filter", "- The user"), id="filtered"),
        pytest.param(ends("length", "- The user wants"), id="cut-off"),
    ],
)
def test_refused_summary_waits_for_new_messages(talking: Talk, answer: Scripted) -> None:
    """Lost if red: history for an empty text, or a call behind every reply for one (CTX-3)."""
    entries = talk(21)
    talking.append(entries)
    assert not talking.compact(answer)
    assert talking.untouched(entries)
    assert talking.state == (0, 52)
    calls = []
    for number in range(22, 30):
        talking.append(turn(number))
        talking.compact(answer)
        calls.append(len(answer.asked))
    assert calls == [1, 1, 1, 1, 2, 2, 2, 2]
    assert talking.compact(Scripted("one", says(GOOD)), force=True)
    assert talking.state == (1, 0)


def test_answer_without_an_end_is_not_waited_for(talking: Talk) -> None:
    """Lost if red: a process's memory, to a model that repeats itself."""
    talking.append(talk(21))
    endless = ends("stop", *["- And so on. " * 400] * 100)
    assert not talking.compact(endless)
    assert (endless.left, endless.ended) == (1, 0)


def test_answer_that_is_cut_off_ends_with_its_last_whole_line(talking: Talk) -> None:
    """Lost if red: half a sentence that says the contrary."""
    talking.append(talk(21))
    assert talking.compact(ends("length", "- Beds 1 to 6 are dug.\n- The user will not"))
    assert talking.summary == "- Beds 1 to 6 are dug."


class Growing:
    """A model that answers with the summary so far and more."""

    name = model = "growing"

    def __init__(self) -> None:
        self.inputs: list[int] = []

    async def stream(self, request: Any) -> Any:
        """See `Provider.stream`."""
        (message,) = request.messages
        self.inputs.append(estimate_tokens(request.system + message.content))
        lines = [json.loads(one) for one in message.content.splitlines() if one.startswith("{")]
        before = lines[0].get("summary", "")
        more = "\n".join(f"- {one['text'][:60]}" for one in lines if "text" in one)
        yield TextDelta(text=f"{before}\n{more}")
        yield Finished(reason="stop", provider="growing", model="growing")

    async def close(self) -> None:
        """See `Provider.close`."""


def test_summary_that_is_only_added_to_stays_bounded(talking: Talk) -> None:
    """Lost if red: the bound of the context, for a model that never folds (CTX-3 c)."""
    model = Growing()
    done = []
    talking.append(talk(15, first=1000))
    for number in range(120):
        talking.append(turn(number))
        done.append(talking.compact(model))
        if talking.summary:
            assert estimate_tokens(render_summary(talking.summary)) <= SUMMARY_TOKENS
    assert not any(one and following for one, following in pairwise(done))
    assert len(model.inputs) <= 24
    assert max(model.inputs) < 16_000


def test_without_a_model_the_messages_own_sentences_stay(talking: Talk) -> None:
    """Lost if red: compaction for whoever has set no provider."""
    talking.append([*turn(0, "We decided on oak for the fence.", "Good."), *talk(21, first=1)])
    for number in range(22, 90):
        talking.compact(None)
        talking.append(turn(number))
        assert count_messages(talking.entries) <= 44
    assert talking.summary is not None
    assert "We decided on oak for the fence." in talking.summary
    assert estimate_tokens(render_summary(talking.summary)) <= SUMMARY_TOKENS


# ── what happens meanwhile ───────────────────────────────────────────────────────────────────


def meanwhile(talking: Talk, act: Callable[[], object]) -> bool:
    """Compact, and do this while the model is asked."""
    model = ScriptedProvider()
    running = talking.start(model)
    talking.node.run(model.say(GOOD))
    act()
    talking.node.run(model.finish())
    return running.result(30)


def test_what_a_turn_adds_meanwhile_stays(talking: Talk) -> None:
    """Lost if red: the turn that ended while the summary was written."""
    entries = talk(21)
    talking.append(entries)
    assert meanwhile(talking, lambda: talking.append(turn(22)))
    assert talking.entries == [*entries[12:], *turn(22)]
    assert talking.events[0]["kept"] == 32


def test_lost_lease_writes_nothing(talking: Talk) -> None:
    """Lost if red: two workers that cut the same history."""
    entries = talk(21)
    talking.append(entries)
    assert not meanwhile(talking, lambda: talking.lend("another's"))
    assert talking.untouched(entries)
    model = Scripted("one", says(GOOD))
    assert not talking.compact(model)
    assert model.asked == [], "nor is it begun by who does not hold it"


def test_refused_summary_of_a_lost_lease_puts_nothing_off(talking: Talk) -> None:
    """Lost if red: as above; the one who holds it has decided by now."""
    talking.append(talk(21))
    model = ScriptedProvider()
    running = talking.start(model)
    talking.node.run(model.say(" "))
    talking.lend("another's")
    talking.node.run(model.finish())
    assert not running.result(30)
    assert talking.state == (0, 0)


def test_sealed_session_stays_as_it_is(talking: Talk) -> None:
    """Lost if red: the audit of an ended session."""
    entries = talk(21)
    talking.append(entries)
    seal = "UPDATE pal.session_states SET sealed_at = now() WHERE session_id = %s"
    assert not meanwhile(talking, lambda: talking.stack.database.rows(seal, talking.id))
    assert talking.untouched(entries)
    model = Scripted("one", says(GOOD))
    assert not talking.compact(model)
    assert model.asked == []


def test_session_that_was_compacted_meanwhile_is_not_cut_twice(talking: Talk) -> None:
    """Lost if red: messages that no summary has ever seen."""
    talking.append(talk(21))
    assert not meanwhile(talking, lambda: talking.compact(None))
    assert talking.entries == talk(21)[12:]
    assert talking.state == (1, 0)
    assert len(talking.events) == 1


def test_history_that_was_changed_meanwhile_is_not_cut(talking: Talk) -> None:
    """Lost if red: messages that are not the ones the summary is of."""
    talking.append(talk(21))
    shorter = "UPDATE pal.sessions SET messages = messages - 0 - 0 WHERE id = %s"
    assert not meanwhile(talking, lambda: talking.stack.database.rows(shorter, talking.id))
    assert talking.untouched(talk(21)[2:])


def test_session_that_is_gone_is_let_go(talking: Talk) -> None:
    """Lost if red: a worker that stumbles over a deleted session."""
    talking.append(talk(21))
    delete = talking.node.services.sessions.delete
    assert not meanwhile(
        talking, lambda: talking.node.run(delete(talking.stack.caller, talking.id))
    )
    assert not talking.compact(None)


def test_another_tenant_sees_nothing_of_it(talking: Talk) -> None:
    """Lost if red: one tenant's messages in another one's summary."""
    entries = talk(21)
    talking.append(entries)
    assert not talking.compact(None, tenant_id=talking.stack.other_tenant)
    assert talking.untouched(entries)


def test_process_that_ends_amid_it_leaves_all(talking: Talk) -> None:
    """Lost if red: a deploy at the wrong moment."""
    entries = talk(21)
    talking.append(entries)
    model = ScriptedProvider()
    running = talking.start(model)
    talking.node.run(model.say(GOOD))
    running.cancel()
    assert talking.untouched(entries)
    assert talking.compact(Scripted("one", says(GOOD)))


def test_call_and_its_late_result_stay_together(talking: Talk) -> None:
    """Lost if red: a result without its call in every prompt that follows."""
    waits = called(3, "call_3", id="msg_a3")
    later = [result(9, "call_3"), *turn(9)]
    asked = [*talk(2), said(3, "Delete it."), waits, *talk(5, first=4), *later]
    entries = [*asked, *talk(15, first=10)]
    talking.append(entries)
    assert talking.compact(None)
    assert talking.entries == entries[len(asked) :]


def test_log_tells_no_text(talking: Talk, caplog: pytest.LogCaptureFixture) -> None:
    """Lost if red: people's words in the log."""
    talking.append([said(0, "The secret is swordfish."), replied(0, "Swordfish."), *talk(21)])
    with caplog.at_level(logging.INFO):
        assert not talking.compact(ends("stop"))
        assert not talking.compact(Scripted("one", [ProviderUnavailable("x")]), force=True)
        assert talking.compact(ends("stop", "- It is swordfish."), force=True)
    told = [vars(one) for one in caplog.records if one.name == "chalicelib.context.compaction"]
    actions = ["summary_refused", "compaction_failed", "compacted"]
    assert [one["action"] for one in told] == actions
    assert "swordfish" not in str(told).lower()


def test_reached_over_http_it_shows_the_summary(talking: Talk) -> None:
    """Lost if red: a caller who sees what the model is given in place of the beginning."""
    talking.append(talk(21))
    http: HttpClient = talking.stack.http()
    assert "summary" not in http.call("GET", f"/v1/sessions/{talking.id}").json
    assert talking.compact(Scripted("one", says(GOOD)))
    assert http.call("GET", f"/v1/sessions/{talking.id}").json["summary"] == GOOD
