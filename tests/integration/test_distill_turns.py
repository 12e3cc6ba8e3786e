"""Transcripts of the quality set as turns of a session, which are told as one event each."""

import pytest

from chalicelib.memory.distillates import Distillates
from tests.distillation.corpus import Transcript, load_corpus
from tests.distillation.judge import judge
from tests.distillation.reading import Parts, know_people, known_facts, read_all
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.agents import turn
from tests.support.answers import new_session
from tests.support.distilling import Memory, ScriptedModels
from tests.support.stack import Stack

# one person who is known by a `userId`, asking and answered in turn
CHOSEN = (
    "en-sailing-doctor",
    "en-second-paragraph",
    "it-advice-not-taken",
    "fr-summary-by-assistant",
    "zh-assistant-persona",
    "it-mere-yes",
    "de-confirmed-guess",
    "en-birthday-slip",
    "ja-address",
    "ar-two-languages",
    "en-api-key",
    "ja-polite-order",
)
CORPUS = {one.id: one for one in load_corpus()}


@pytest.mark.parametrize("transcript", [CORPUS[one] for one in CHOSEN], ids=lambda one: one.id)
def test_what_was_said_in_a_session_comes_out_as_from_a_channel(
    stack: Stack, provider: FakeOpenAI, transcript: Transcript
) -> None:
    """Lost if red: whatever people tell in sessions; or the assistant's part, as theirs (MEM-8)."""
    memory, models, http = Memory(stack, stack.caller), ScriptedModels(), stack.http()
    services = stack.node.services
    parts = Parts(
        people=services.people,
        timeline=services.timeline,
        distillates=Distillates(services.db),
        passes=memory.distiller(models),
    )
    [talk] = transcript.conversations
    [someone] = transcript.people.values()
    ids = memory.run(know_people(parts, stack.caller, transcript))
    session = new_session(http, userId=someone.handle.removeprefix("user:"))
    said = [one.text for one in talk.messages if one.role == "user"]
    replies = [one.text for one in talk.messages if one.role == "assistant"]
    assert [one.text for one in talk.messages][::2] == said, "they take turns"
    for number, text in enumerate(said):
        provider.script(Reply(pieces=[*replies[number : number + 1], "Ok."][:1]))
        turn(http, session, text)
    models.script = [talk.answer]
    memory.run(read_all(parts, stack.caller, events=len(said)))
    facts = memory.run(known_facts(parts, stack.caller, ids))
    verdict = judge(transcript, facts)
    assert [transcript.must[n].says for n in verdict.missing] == []
    assert [one.text for _, one in verdict.forbidden] == []
    assert [one.text for one in verdict.extra] == []
    bad = {item.get("content") for item in talk.items if "bad" in item}
    assert [one.text for one in facts if one.content in bad] == []
    assert len(models.asked) == 1
