"""What a turn asks once it has called tools: it fits, and nothing that was done goes untold."""

from typing import Any

import orjson
import pytest

from chalicelib.context.given import Asked
from chalicelib.providers import ModelRequest, ToolCall
from chalicelib.providers.counting import estimate_request
from chalicelib.providers.history import CallPart, ResultPart, normalise
from chalicelib.sessions.calls import Call, Round
from chalicelib.sessions.prompt import Prompt
from tests.unit.test_compile import asked, compiled, ground, message, text_of

PAY = {"id": "call_pay", "name": "pay", "arguments": {"amount": 900}}


def looked(number: int, calls: int, size: int) -> list[dict[str, Any]]:
    """A turn that looked so many times, and read so much each time."""
    entries = [message(number, "user", 40)]
    for place in range(calls):
        call = {"id": f"call_{number}_{place}", "name": "look", "arguments": {}}
        told = {"role": "tool", "toolCallId": call["id"], "content": text_of(size)}
        entries += [{"role": "assistant", "content": "", "toolCalls": [call]}, told]
    return [{"turnId": f"tur_{number}", **one} for one in entries]


def asking(number: int) -> dict[str, Any]:
    """The reply of a turn that wants to pay and has to ask."""
    told = {"id": f"msg_{number}_a", "role": "assistant", "content": "May I?"}
    return {**told, "toolCalls": [PAY], "turnId": f"tur_{number}"}


def paid(number: int = 1) -> Call:
    """The payment that turn asked for, approved and done."""
    values: dict[str, Any] = {"turn_id": f"tur_{number}", "round": 1, "place": 1}
    call = Call(id="call_pay", name="pay", arguments='{"amount":900}', status="completed", **values)
    call.result = "paid, receipt 4711"
    return call


def dumped(*entries: dict[str, Any]) -> str:
    return orjson.dumps(entries).decode()


def pairs(request: ModelRequest) -> dict[str, str]:
    """What became of each call as a vendor is told it, by the call's name and arguments."""
    parts = [part for one in normalise(request, provider="p", model="m", images=True)
             for part in one.parts]  # fmt: skip
    calls = {one.id: f"{one.name} {one.arguments}" for one in parts if isinstance(one, CallPart)}
    return {calls[one.call_id]: one.text for one in parts if isinstance(one, ResultPart)}


def test_a_call_that_was_approved_late_is_told_though_its_turn_is_out_of_the_budget() -> None:
    """The model would pay again: it would not know that it ever did."""
    talk = [message(n, role, 900) for n in (2, 3, 4) for role in ("user", "assistant")]
    history = dumped(message(1, "user", 40), asking(1), *talk)
    made = compiled(ground(history=history), asked(), 1_200)
    assert "tur_1" not in [one.turn_id for one in made.blocks]
    request = Prompt(compiled=made).request(decided=[paid()])
    assert pairs(request) == {"pay {'amount': 900}": "paid, receipt 4711"}
    assert request.messages[-1].role == "user"
    # where there is room it is told once, behind its own call
    whole = Prompt(compiled=compiled(ground(history=history), asked(), 9_000))
    told = str(whole.request(decided=[paid()]).messages)
    assert told.count("receipt 4711") == told.count("'pay'") == 1


def test_a_turn_goes_on_after_an_approval_however_much_it_had_read() -> None:
    """What was approved would not be done: the turn would fail before its first call."""
    history = dumped(*looked(1, calls=8, size=6_000), asking(1))
    made = compiled(ground(history=history), Asked(), 6_000)
    assert made.tokens <= 6_000
    assert [one.id for one in made.dropped] == ["tur_1"]
    request = Prompt(compiled=made).request(decided=[paid()])
    assert estimate_request(request) <= 6_000
    assert pairs(request)["pay {'amount': 900}"] == "paid, receipt 4711"
    assert len([one for one in request.messages if one.role == "tool"]) == 9


def test_what_was_asked_just_before_is_told_however_long_what_a_tool_gave() -> None:
    """After one long file, "and in German?" would be about nothing."""
    long = [*looked(1, calls=2, size=30_000), message(1, "assistant", 80)]
    made = compiled(ground(history=dumped(*long)), asked(), 6_000)
    assert [one.turn_id for one in made.blocks] == ["tur_1"]
    assert made.tokens <= 6_000
    told = [one.content for one in Prompt(compiled=made).request().messages]
    assert told[0].startswith("user1")
    assert sum("characters left out here" in one for one in told) == 2


def test_a_message_that_was_refused_for_its_length_takes_nothing_along() -> None:
    """After one paste that is too long, all that was said before it would be forgotten."""
    before = [message(1, "user", 200), message(1, "assistant", 200)]
    after = [message(3, "user", 60), message(3, "assistant", 60)]
    for pasted in (
        message(2, "user", 200_000),
        {**message(2, "user", 20), "attachments": [{}] * 9},
    ):
        for last in ([], after):
            made = compiled(ground(history=dumped(*before, pasted, *last)), asked(), 6_000)
            assert made.tokens <= 6_000
            told = [one.content for one in Prompt(compiled=made).request().messages]
            assert told[0].startswith("user1")
            assert "tur_2" in [one.id for one in made.dropped]
            shortened = [one for one in told if one.startswith("user2")]
            assert all("characters left out here" in one for one in shortened)
            assert len(shortened) == ("attachments" not in pasted)


@pytest.mark.parametrize("hint", [None, "Be brief."], ids=["no-hint", "hint"])
def test_a_turn_that_goes_on_keeps_its_question_while_its_rounds_grow(hint: str | None) -> None:
    history = dumped(message(1, "user", 2_000), asking(1))
    made = compiled(ground(history=history), Asked(turn_hint=hint), 1_500)
    for count in (0, 1, 3):
        rounds = [lookup(number) for number in range(1, count + 1)]
        request = Prompt(compiled=made).request(decided=[paid()], rounds=rounds)
        assert any(one.content.startswith("user1") for one in request.messages)
        assert "receipt 4711" in str(request.messages)
        assert estimate_request(request) <= 1_500


def lookup(number: int) -> Round:
    call = Call(
        id=f"call_{number}", turn_id="tur_2", round=number, place=1, name="look",
        arguments="{}", status="completed", result=text_of(20_000),
    )  # fmt: skip
    return Round(number=number, content="", provider="p", model="m", calls=[call])


def test_results_that_nothing_else_makes_room_for_are_cut_to_little() -> None:
    """A small model would refuse the request, and the turn with it."""
    made = compiled(ground(), asked(), 1_500)
    request = Prompt(compiled=made).request(rounds=[lookup(number) for number in range(1, 9)])
    assert estimate_request(request) <= 1_500
    calls = [call for one in request.messages for call in one.tool_calls]
    assert all(isinstance(one, ToolCall) for one in calls)
    assert len(calls) == 8
