"""What any stored history becomes before a vendor sees it: a form that none of them refuses."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chalicelib.errors import ProviderUnsupported
from chalicelib.providers.base import ModelMessage, ModelRequest, Reasoning, ToolCall, ToolSpec
from chalicelib.providers.history import (
    BEGINNING,
    GO_ON,
    NO_OUTPUT,
    PENDING_RESULT,
    UNSEEN_IMAGE,
    CallPart,
    Exchange,
    ImagePart,
    ReasoningPart,
    ResultPart,
    TextPart,
    normalise,
)

IMAGE = {"type": "image", "mediaType": "image/png", "data": "iVBORw0KGgo="}
TOOL = ToolSpec(name="look", description="Looks.", parameters={"type": "object"})
SIGNED = Reasoning(
    provider="anthropic", model="m", blocks=({"type": "thinking", "signature": "s"},)
)


def user(text: str, *attachments: dict[str, Any]) -> ModelMessage:
    return ModelMessage(role="user", content=text, attachments=attachments)


def hint(text: str) -> ModelMessage:
    return ModelMessage(role="system", content=text)


def said(text: str, *calls: str, reasoning: Reasoning | None = None) -> ModelMessage:
    made = tuple(ToolCall(id=one, name="look", arguments='{"at": 1}') for one in calls)
    return ModelMessage(role="assistant", content=text, tool_calls=made, reasoning=reasoning)


def result(call_id: str, text: str = "seen", *, is_error: bool = False) -> ModelMessage:
    return ModelMessage(role="tool", content=text, tool_call_id=call_id, is_error=is_error)


def shaped(
    *messages: ModelMessage,
    tools: tuple[ToolSpec, ...] = (TOOL,),
    images: bool = True,
    flatten_tools: bool = False,
    provider: str = "anthropic",
) -> list[Exchange]:
    request = ModelRequest(system="", messages=messages, tools=tools)
    return normalise(
        request, provider=provider, model="m", images=images, flatten_tools=flatten_tools
    )


def brief(exchanges: list[Exchange]) -> list[tuple[str, list[str]]]:
    """The same, short enough to be written down: a call is `id(arguments)`, a result `id=text`."""

    def one(part: object) -> str:
        match part:
            case TextPart():
                return part.text
            case CallPart():
                return f"{part.id}{part.arguments}"
            case ResultPart():
                return f"{part.call_id}{'!' if part.is_error else '='}{part.text}"
            case ImagePart():
                return "image"
            case _:
                return "reasoning"

    return [(each.role, [one(part) for part in each.parts]) for each in exchanges]


def wrongs(exchanges: list[Exchange]) -> list[str]:
    """Every rule of some vendor's that this breaks."""
    found = []
    roles = [one.role for one in exchanges]
    if roles != [("user", "assistant")[n % 2] for n in range(len(roles))]:
        found.append(f"roles {roles}")
    if not roles or roles[-1] != "user":
        found.append("no user at the end")
    open_calls: list[str] = []
    ids: list[str] = []
    for one in exchanges:
        kinds = [type(part) for part in one.parts]
        texts = [part.text for part in one.parts if isinstance(part, TextPart | ResultPart)]
        if not kinds or not all(text.strip() for text in texts):
            found.append(f"empty {one}")
        if one.role == "user":
            answered = [part.call_id for part in one.parts if isinstance(part, ResultPart)]
            if answered != open_calls or ResultPart in kinds[len(answered) :]:
                found.append(f"calls {open_calls} answered by {answered}")
            if {CallPart, ReasoningPart} & set(kinds):
                found.append("an assistant's part with the user")
        else:
            open_calls = [part.id for part in one.parts if isinstance(part, CallPart)]
            ids += open_calls
            if {ResultPart, ImagePart} & set(kinds):
                found.append("a user's part with the assistant")
            reasons = kinds.count(ReasoningPart)
            if kinds[:reasons] != [ReasoningPart] * reasons or reasons == len(kinds):
                found.append("reasoning out of its place")
    if len(set(ids)) < len(ids):
        found.append("an id twice")
    return found


# ── messages in a row, at the edges, empty ───────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("messages", "shape"),
    [
        pytest.param([user("a"), user("b")], [("user", ["a", "b"])], id="turn-that-failed"),
        pytest.param(
            [user("a"), said("b"), said("c"), user("d")],
            [("user", ["a"]), ("assistant", ["b", "c"]), ("user", ["d"])],
            id="assistant-twice",
        ),
        pytest.param(
            [said("hello"), user("a")],
            [("user", [BEGINNING]), ("assistant", ["hello"]), ("user", ["a"])],
            id="assistant-greets",
        ),
        pytest.param(
            [user("a"), said(" \n"), user("b")], [("user", ["a", "b"])], id="blank-answer"
        ),
        pytest.param([user(" "), user("b")], [("user", ["b"])], id="blank-message"),
        pytest.param(
            [user("a"), said("b")],
            [("user", ["a"]), ("assistant", ["b"]), ("user", [GO_ON])],
            id="assistant-last",
        ),
        pytest.param([], [("user", [GO_ON])], id="nothing"),
        pytest.param(
            [user("a"), said("b"), hint("short"), user("c"), hint("now")],
            [("user", ["a"]), ("assistant", ["b"]), ("user", ["short", "c", "now"])],
            id="hints-in-their-places",
        ),
        pytest.param(
            [hint("short"), said("b"), user("c")],
            [("user", ["short"]), ("assistant", ["b"]), ("user", ["c"])],
            id="hint-first",
        ),
    ],
)
def test_turns_alternate_whatever_was_stored(
    messages: list[ModelMessage], shape: list[tuple[str, list[str]]]
) -> None:
    """Lost if red: the session, from the first turn that failed on (PRV-10)."""
    assert brief(shaped(*messages)) == shape


# ── calls and results ────────────────────────────────────────────────────────────────────────


def test_results_stand_behind_their_calls_in_the_calls_order() -> None:
    """Lost if red: parallel calls, whose results come as they are done."""
    exchanges = shaped(
        user("a"),
        said("let me look", "c1", "c2"),
        result("c2", "two", is_error=True),
        hint("be short"),
        result("c1", "one"),
        user("and?"),
    )
    assert brief(exchanges) == [
        ("user", ["a"]),
        ("assistant", ["let me look", "c1{'at': 1}", "c2{'at': 1}"]),
        ("user", ["c1=one", "c2!two", "be short", "and?"]),
    ]


@pytest.mark.parametrize(
    "then",
    [
        pytest.param((user("what time is it?"),), id="user-goes-on"),
        pytest.param((said("it waits"), user("what time is it?")), id="assistant-goes-on"),
        pytest.param((), id="nothing-more"),
    ],
)
def test_open_call_is_told_as_pending_and_not_done(then: tuple[ModelMessage, ...]) -> None:
    """Lost if red: the chat, as long as an approval waits; or a lie about what was done (TOL-5)."""
    exchanges = shaped(user("delete it"), said("", "c1", "c2"), result("c1", "gone"), *then)
    assert brief(exchanges)[2][1][:2] == ["c1=gone", f"c2={PENDING_RESULT}"]
    assert "NOT" in PENDING_RESULT
    assert wrongs(exchanges) == []


@pytest.mark.parametrize("blank", [said(" "), said("", reasoning=SIGNED), user("\n")])
def test_blank_message_does_not_come_between_a_call_and_its_result(blank: ModelMessage) -> None:
    """Lost if red: a result that was there all along, told as pending."""
    exchanges = shaped(user("a"), said("", "c1"), blank, result("c1"), user("b"))
    assert brief(exchanges)[2] == ("user", ["c1=seen", "b"])


def test_late_result_is_told_where_it_came() -> None:
    """Lost if red: what became of a call that was approved after the talk went on (TOL-5)."""
    exchanges = shaped(
        user("delete it"),
        said("", "c1"),
        user("what time is it?"),
        said("noon"),
        result("c1", "it is deleted"),
        user("thanks"),
    )
    assert brief(exchanges)[2] == ("user", [f"c1={PENDING_RESULT}", "what time is it?"])
    _, (told, thanks) = brief(exchanges)[4]
    assert thanks == "thanks"
    assert "`look`" in told
    assert '{"at":1}' in told
    assert told.endswith("it is deleted")


def test_late_failure_is_told_as_one() -> None:
    """Lost if red: a denied call, told to the model as a success."""
    late = shaped(user("a"), said("", "c1"), user("b"), result("c1", "denied", is_error=True))
    assert "failed" in brief(late)[2][1][2]


def test_second_result_of_a_call_is_told_and_no_result() -> None:
    """Lost if red: the session, when a call that was run again told twice."""
    exchanges = shaped(user("a"), said("", "c1"), result("c1", "one"), result("c1", "two"))
    assert wrongs(exchanges) == []
    assert "two" in brief(exchanges)[2][1][1]


def test_result_without_its_call_is_left_out() -> None:
    """Lost if red: the session, once compaction cut between a call and its result (PRV-11)."""
    exchanges = shaped(result("gone"), user("a"))
    assert brief(exchanges) == [("user", ["a"])]


def test_blank_result_says_so() -> None:
    """Lost if red: the turn of a tool that has nothing to say."""
    assert brief(shaped(user("a"), said("", "c1"), result("c1", " ")))[2][1] == [f"c1={NO_OUTPUT}"]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        pytest.param("", {}, id="empty"),
        pytest.param(" \n", {}, id="blank"),
        pytest.param("null", {}, id="null"),
        pytest.param("{}", {}, id="none"),
        pytest.param('{"at": "é"}', {"at": "é"}, id="some"),
        pytest.param('{"at": ', {"invalid_arguments": '{"at": '}, id="broken"),
        pytest.param("[1]", {"invalid_arguments": "[1]"}, id="list"),
        pytest.param('"x"', {"invalid_arguments": '"x"'}, id="text"),
        pytest.param(
            '{"at": "\\ud800"}', {"invalid_arguments": '{"at": "\\ud800"}'}, id="half-surrogate"
        ),
        pytest.param(
            f'{{"at": {"[" * 200}{"]" * 200}}}',
            {"invalid_arguments": f'{{"at": {"[" * 200}{"]" * 200}}}'},
            id="too-deep-to-write",
        ),
    ],
)
def test_arguments_that_were_stored_can_be_sent_again(arguments: str, sent: dict[str, Any]) -> None:
    """Lost if red: every later turn of a session whose model once sent no JSON (TOL-2)."""
    call = ToolCall(id="c1", name="look", arguments=arguments)
    asked = ModelMessage(role="assistant", content="", tool_calls=(call,))
    assert shaped(user("a"), asked)[1].parts == (CallPart(id="c1", name="look", arguments=sent),)


@pytest.mark.parametrize(
    ("name", "sent"),
    [
        pytest.param("look", "look", id="good"),
        pytest.param("files.look at:this", "files_look_at_this", id="odd"),
        pytest.param("", "unnamed", id="none"),
        pytest.param("x" * 200, "x" * 64, id="long"),
    ],
)
def test_name_that_a_model_made_up_can_be_sent_again(name: str, sent: str) -> None:
    """Lost if red: every later turn of a session whose model once called what is no tool."""
    call = ToolCall(id="c1", name=name, arguments="{}")
    asked = ModelMessage(role="assistant", content="", tool_calls=(call,))
    exchanges = shaped(user("a"), asked)
    assert exchanges[1].parts == (CallPart(id="c1", name=sent, arguments={}),)
    assert exchanges[2].parts == (
        ResultPart(call_id="c1", name=sent, text=PENDING_RESULT, is_error=False),
    )


# ── flattened tools ──────────────────────────────────────────────────────────────────────────


def test_calls_become_text_where_no_tools_are_offered() -> None:
    """Lost if red: the closing round without tools, on vendors that refuse it (PRV-8)."""
    messages = (
        user("how warm?"),
        said("let me look", "c1", reasoning=SIGNED),
        result("c1", "21 degrees"),
        said("", "c2"),
        user("well?"),
    )
    flat = shaped(*messages, tools=(), flatten_tools=True)
    assert [one.role for one in flat] == ["user", "assistant", "user"]
    assert wrongs(flat) == []
    assert flat[1].parts == (TextPart(text="let me look"),)
    first, second, last = (part.text for part in flat[2].parts if isinstance(part, TextPart))
    assert "`look`" in first
    assert '{"at":1}' in first
    assert first.endswith("21 degrees")
    assert second.endswith(PENDING_RESULT)
    assert last == "well?"


def test_nothing_is_flattened_while_tools_are_offered_or_no_call_was_made() -> None:
    """Lost if red: the calls of a tool loop, and reasoning, on those vendors."""
    messages = (user("a"), said("", "c1", reasoning=SIGNED), result("c1"))
    assert shaped(*messages, flatten_tools=True) == shaped(*messages)
    without = (user("a"), said("b", reasoning=SIGNED), user("c"))
    assert shaped(*without, tools=(), flatten_tools=True) == shaped(*without)


# ── reasoning ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("provider", "kept"),
    [
        pytest.param("anthropic", True, id="its-issuer"),
        pytest.param("anthropic@b", False, id="another"),
    ],
)
def test_reasoning_goes_to_its_issuer_alone_and_first(provider: str, kept: bool) -> None:
    """Lost if red: failover between two vendors of one wire, which check signatures (PRV-7)."""
    exchanges = shaped(
        user("a"), said("b", "c1", reasoning=SIGNED), result("c1"), provider=provider
    )
    assert brief(exchanges)[1][1] == ["reasoning"] * kept + ["b", "c1{'at': 1}"]
    assert [p.block for p in exchanges[1].parts if isinstance(p, ReasoningPart)] == [
        *SIGNED.blocks * kept
    ]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param((said("b", reasoning=SIGNED), said("c")), id="first"),
        pytest.param((said("b"), said("c", reasoning=SIGNED)), id="second"),
    ],
)
def test_reasoning_is_left_out_of_messages_that_are_merged(
    messages: tuple[ModelMessage, ...],
) -> None:
    """Lost if red: the session; its issuer refuses reasoning amid what is not its message."""
    assert brief(shaped(user("a"), *messages, user("d")))[1] == ("assistant", ["b", "c"])


def test_reasoning_alone_is_no_answer() -> None:
    """Lost if red: the session; no vendor takes a message that ends in reasoning."""
    assert brief(shaped(user("a"), said("", reasoning=SIGNED), user("b"))) == [("user", ["a", "b"])]


# ── images ───────────────────────────────────────────────────────────────────────────────────


def test_images_come_after_their_text() -> None:
    """Lost if red: images."""
    assert brief(shaped(user("this", IMAGE, IMAGE), user("", IMAGE))) == [
        ("user", ["this", "image", "image", "image"])
    ]


def test_new_image_for_a_model_without_eyes_is_an_error_that_names_it() -> None:
    """Lost if red: the reason why a picture was not looked at."""
    with pytest.raises(ProviderUnsupported, match="anthropic:m") as failure:
        shaped(user("a"), said("b"), user("this", IMAGE), user("well?"), images=False)
    assert not failure.value.again


def test_older_image_for_a_model_without_eyes_is_told_of() -> None:
    """Lost if red: the rest of a session in which one picture was sent."""
    exchanges = shaped(user("this", IMAGE), said("b"), user("c"), images=False)
    assert brief(exchanges)[0] == ("user", ["this", UNSEEN_IMAGE])


# ── any history ──────────────────────────────────────────────────────────────────────────────


def alternating(length: int, *, tools: bool) -> list[ModelMessage]:
    """So many messages, the newest a user's; each answer takes three where it calls a tool."""
    messages: list[ModelMessage] = [user(f"question {length}")]
    turn = 0
    while len(messages) < length:
        turn += 1
        answer = [said(f"answer {turn}")]
        if tools and turn % 2:
            answer = [said("", f"c{turn}"), result(f"c{turn}"), *answer]
        messages[:0] = [user(f"question {turn}"), *answer]
    return messages[-length:]


@pytest.mark.parametrize("tools", [False, True], ids=["plain", "tool-pairs"])
@pytest.mark.parametrize("flatten", [False, True], ids=["kept", "flattened"])
def test_any_window_on_a_history_of_any_length_can_be_sent(tools: bool, flatten: bool) -> None:
    """Lost if red: a session, at certain lengths only (PRV-11)."""
    for length in range(1, 131):
        messages = alternating(length, tools=tools)
        for window in {1, 2, 3, 4, 5, 49, 50, 51, length - 1, length} & set(range(1, length + 1)):
            sent = messages[-window:]
            offered = () if flatten else (TOOL,)
            exchanges = shaped(*sent, tools=offered, flatten_tools=flatten)
            assert wrongs(exchanges) == [], (length, window)
            assert exchanges[-1].parts[-1] == TextPart(text=f"question {length}")


@pytest.mark.parametrize("start", range(21))
def test_any_suffix_of_a_history_can_be_sent(start: int) -> None:
    """Lost if red: compaction that cuts where it has to (PRV-11)."""
    messages = [
        *[said("greeting"), user("u1"), user("u2"), said("", "a1", "a2"), result("a2")],
        *[result("a1"), hint("h"), said("", "b1"), user("u3"), said("s"), result("b1")],
        *[said("", "c1", reasoning=SIGNED), result("c1"), result("c1"), said(" "), user("u4")],
        *[said("", "d1"), said("e"), result("d1"), user("u5"), hint("h2")],
    ]
    assert len(messages) == 21
    exchanges = shaped(*messages[start:])
    assert wrongs(exchanges) == []
    if start < 20:
        assert TextPart(text="u5") in exchanges[-1].parts


TEXTS = st.sampled_from(["", " ", "\n\t", "x", "a longer text"])
CALLS = st.lists(st.sampled_from(["c0", "c1", "c2", "c3"]), max_size=3, unique=True)


@st.composite
def histories(draw: st.DrawFn) -> list[ModelMessage]:
    """Any messages in any order, each call under an id of its own."""
    messages: list[ModelMessage] = []
    for n in range(draw(st.integers(0, 12))):
        role = draw(st.sampled_from(["user", "assistant", "tool", "tool", "system"]))
        text = draw(TEXTS)
        if role == "user":
            messages.append(user(text, *[IMAGE] * draw(st.integers(0, 1))))
        elif role == "assistant":
            reasoning = draw(st.sampled_from([None, SIGNED]))
            calls = [f"{one}_{n}" for one in draw(CALLS)]
            messages.append(said(text, *calls, reasoning=reasoning))
        elif role == "tool":
            call_id = f"{draw(st.sampled_from(['c0', 'c1']))}_{draw(st.integers(0, n))}"
            messages.append(result(call_id, text, is_error=draw(st.booleans())))
        else:
            messages.append(hint(text))
    return messages


@given(messages=histories(), newest=TEXTS, tools=st.booleans(), flatten=st.booleans())
def test_any_history_at_all_can_be_sent(
    messages: list[ModelMessage], newest: str, tools: bool, flatten: bool
) -> None:
    """Lost if red: the session in which that came about; no vendor would answer it again."""
    offered = (TOOL,) if tools else ()
    exchanges = shaped(*messages, user(newest), tools=offered, flatten_tools=flatten)
    assert wrongs(exchanges) == []
    texts = [part.text for part in exchanges[-1].parts if isinstance(part, TextPart)]
    assert not newest.strip() or texts[-1] == newest
    kept = [part.text for one in exchanges for part in one.parts if isinstance(part, TextPart)]
    for message in messages:
        if message.role != "tool" and message.content.strip():
            assert message.content in kept
    if flatten and not tools and any(message.tool_calls for message in messages):
        kinds = {type(part) for one in exchanges for part in one.parts}
        assert not kinds & {CallPart, ResultPart, ReasoningPart}
