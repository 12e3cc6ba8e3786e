"""The tree without a model: what people say outright is seen, and small talk is not."""

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chalicelib.context.plain_tree import plain_operations
from chalicelib.context.shapes import Node, Said, Tree
from chalicelib.context.tree import OPERATIONS_AT_MOST, TEXT_AT_MOST, Operation, apply_all

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def said(*turns: tuple[str, str]) -> list[Said]:
    return [
        Said(id=f"msg_{number}{role[0]}", role=role, content=text, at=NOON, ordinal=number)
        for number, turn in enumerate(turns, start=1)
        for role, text in zip(("user", "assistant"), turn, strict=True)
    ]


def talked(*turns: tuple[str, str], tree: Tree | None = None) -> Tree:
    """The tree after these turns, kept after each."""
    tree = tree or Tree()
    for turn in turns:
        ops = plain_operations(tree, said(turn))
        tree, refused = apply_all(tree, ops, sources=("msg_x",), at=NOON)
        assert refused == 0, ops
    return tree


def told(tree: Tree, kind: str) -> list[str]:
    return [one.text for one in tree.nodes if one.kind == kind]


def one_node(tree: Tree, kind: str) -> Node:
    [found] = [one for one in tree.nodes if one.kind == kind]
    return found


TRIP = ("I want to plan a trip to Lisbon in May with my two kids.", "Good idea.")


def test_first_message_names_the_topic() -> None:
    """Lost if red: what a conversation is about, where there is no model."""
    tree = talked(TRIP)
    topic = one_node(tree, "topic")
    assert topic.text == "I want to plan a trip to Lisbon in May…"
    assert topic.sources == ("msg_1u",)
    assert tree.active == topic.number


@pytest.mark.parametrize(
    "text",
    [
        "ok",
        "Thanks!",
        "ok, thank you so much",
        "👍",
        "hi",
        "Terima kasih ya",
        "好的，谢谢",
        "…",
        " ",
    ],
    ids=["ok", "thanks", "long-thanks", "thumb", "hi", "id", "zh", "dots", "blank"],
)
def test_small_talk_makes_no_node(text: str) -> None:
    """Lost if red: a tree of thanks."""
    assert plain_operations(Tree(), said((text, "You're welcome!"))) == []
    tree = talked(TRIP)
    assert plain_operations(tree, said((text, "You're welcome!"))) == []


def test_question_is_answered_by_the_first_sentence_of_the_reply() -> None:
    """Lost if red: questions that stay open though they were answered."""
    tree = talked(
        TRIP, ("Which hotel is good?", "Great! The Martinhal has 2.5 rooms free. It has a club.")
    )
    asked = one_node(tree, "open_question")
    assert (asked.text, asked.status) == ("Which hotel is good?", "resolved")
    assert asked.outcome == "The Martinhal has 2.5 rooms free."
    assert asked.sources == ("msg_1u", "msg_1a")


@pytest.mark.parametrize("reply", ["What is your budget?", "", "Sure!"])
def test_question_stays_open_where_the_reply_answers_nothing(reply: str) -> None:
    """Lost if red: a question that counts as answered by another one."""
    tree = talked(TRIP, ("Which hotel is good?", reply))
    assert one_node(tree, "open_question").status == "open"


def test_reply_that_is_read_later_still_answers() -> None:
    """Lost if red: an answer whose question was read in the batch before."""
    question, answer = said(("Which hotel is good for us?", "The Martinhal in Chiado."))
    tree, _ = apply_all(Tree(), plain_operations(Tree(), [question]), sources=(), at=NOON)
    tree, _ = apply_all(tree, plain_operations(tree, [answer]), sources=(), at=NOON)
    assert one_node(tree, "open_question").outcome == "The Martinhal in Chiado."


@pytest.mark.parametrize(
    "text",
    [
        "Let's go with Postgres.",
        "No, let's go with Postgres.",
        "OK so we decided on the red one.",
        "We'll use the train.",
        "Agreed: 40 euros a head.",
        "Kita pakai Postgres saja.",
        "Sudah diputuskan tanggal 4 Mei.",
        "Sepakat, hari Selasa.",
        "Wir nehmen den Zug.",
        "Wir haben uns für Oslo entschieden.",
        "Hemos decidido ir en tren.",
        "On a décidé de partir mardi.",
        "我们决定坐火车。",
        "那就用这个方案。",
    ],
)
def test_clear_words_are_a_decision(text: str) -> None:
    """Lost if red: what was settled, in the tongues that are spoken here."""
    tree = talked(TRIP, (f"The weather is fine. {text}", "Noted."))
    assert told(tree, "decision") == [text]


@pytest.mark.parametrize(
    "text",
    [
        "Should we say let's go with Postgres?",
        "If it rains we'll use the tent.",
        "I am not sure we'll use it.",
        "Kalau mahal, kita pakai yang lain.",
        "We haven't decided.",
        "> Let's go with Postgres.",
        "```\n# decision: use Postgres\n```",
        "The shop sells trains.",
    ],
)
def test_questions_conditions_and_quotations_decide_nothing(text: str) -> None:
    """Lost if red: a decision that no one took."""
    tree = talked(TRIP, (f"Here is more of it.\n{text}", "Noted."))
    assert told(tree, "decision") == []


@pytest.mark.parametrize(
    "text",
    [
        "I'll book the flights tomorrow.",
        "Remind me to renew the passports.",
        "TODO: pack the tent.",
        "Saya akan pesan tiket besok.",
        "Ich werde den Zug buchen.",
        "Je dois appeler la banque.",
        "提醒我买票。",
    ],
)
def test_commitment_is_a_task_and_the_talk_stays_where_it_is(text: str) -> None:
    """Lost if red: what someone promised; or the topic, to a task in passing."""
    tree = talked(TRIP, (text, "Noted."))
    assert one_node(tree, "task").text == text
    assert one_node(tree, "task").parent == tree.active == 1


@pytest.mark.parametrize("text", ["I have to say, it is nice there.", "I'll see about that place."])
def test_manner_of_speaking_is_no_task(text: str) -> None:
    """Lost if red: commitments that are none, promoted at the end."""
    assert told(talked(TRIP, (text, "Yes.")), "task") == []


def test_task_is_done_when_that_is_said() -> None:
    """Lost if red: a task that is told of long after it was done."""
    tree = talked(TRIP, ("I'll book the flights tomorrow.", "Good."))
    tree = talked(("I have booked the flights.", "Great."), tree=tree)
    task = one_node(tree, "task")
    assert (task.status, task.outcome) == ("resolved", "I have booked the flights.")
    assert one_node(talked(("I have read a book.", "Oh."), tree=talked(TRIP)), "topic")


@pytest.mark.parametrize(
    ("sign", "text"),
    [
        ("By the way, ", "my printer is broken again."),
        ("Next topic: ", "my printer is broken again."),
        ("Ngomong-ngomong, ", "printer saya rusak lagi."),
        ("Übrigens: ", "mein Drucker ist kaputt."),
        ("Por cierto, ", "mi impresora no funciona."),
        ("Au fait, ", "mon imprimante est en panne."),
        ("顺便，", "我的打印机坏了。"),
    ],
)
def test_change_of_subject_opens_a_topic_and_going_back_finds_the_old_one(
    sign: str, text: str
) -> None:
    """Lost if red: a printer that is a part of a trip."""
    tree = talked(TRIP, (sign + text, "Oh dear."))
    topics = [one for one in tree.nodes if one.kind == "topic"]
    assert [one.parent for one in topics] == [None, None]
    assert tree.active == topics[1].number
    assert topics[1].text == text.rstrip(".。")
    tree = talked(("Back to Lisbon: we decided to fly.", "Fine."), tree=tree)
    assert tree.active == topics[0].number
    assert len(told(tree, "topic")) == 2
    assert one_node(tree, "decision").parent == topics[0].number


def test_long_message_of_other_words_is_another_topic_and_a_short_one_is_not() -> None:
    """Lost if red: topics for every sentence, or one topic for everything."""
    other = (
        "My laptop shows blue screens whenever the graphics driver loads, although firmware, memory"
        " modules, cables, monitor and chargers were replaced yesterday by certified technicians."
    )
    assert len(told(talked(TRIP, (other, "Oh.")), "topic")) == 2
    assert len(told(talked(TRIP, (f"For Lisbon: {other}", "Oh.")), "topic")) == 1
    assert len(told(talked(TRIP, ("My laptop shows blue screens.", "Oh.")), "topic")) == 1


def test_several_turns_at_once_come_to_valid_operations() -> None:
    """Lost if red: what was said while no one kept the tree."""
    turns = [
        TRIP,
        ("Which hotel?", "The Martinhal."),
        ("Let's go with it. Is it far?", "No, near."),
    ]
    ops = plain_operations(Tree(), said(*turns))
    tree, refused = apply_all(Tree(), ops, sources=(), at=NOON)
    assert refused == 0
    assert told(tree, "decision") == ["Let's go with it."]
    assert [one.outcome for one in tree.nodes if one.kind == "open_question"] == [
        "The Martinhal.",
        "No, near.",
    ]


PIECES = st.sampled_from(
    [
        "let's go with ",
        "by the way, ",
        "I'll ",
        "?",
        ". ",
        "\n",
        "done: ",
        "todo: ",
        "back to ",
        "字。",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=30), max_size=25).map("".join)


@settings(deadline=None, max_examples=150)
@given(st.lists(st.tuples(TEXTS, TEXTS), max_size=6))
def test_whatever_is_said_comes_to_operations_that_hold(turns: list[tuple[str, str]]) -> None:
    """Lost if red: numbers that point at the wrong node, once one operation was refused."""
    tree = Tree()
    for batch in (said(*turns), said(*turns)):
        ops: list[Operation] = plain_operations(tree, batch)
        assert len(ops) <= OPERATIONS_AT_MOST
        tree, refused = apply_all(tree, ops, sources=(), at=NOON)
        assert refused == 0
    assert all(len(one.text) <= TEXT_AT_MOST for one in tree.nodes)


@pytest.mark.parametrize(
    "text",
    ["a" * 1_000_000, "? " * 300_000, "```" * 200_000, "let's use " * 50_000, "> " * 300_000],
    ids=["letters", "marks", "fences", "phrases", "quotes"],
)
def test_huge_message_is_read_at_both_ends_only(text: str) -> None:
    """Lost if red: the event loop, to one pasted file."""
    ops = plain_operations(Tree(), said((text + " We decided to stop.", "Fine.")))
    assert len(ops) <= OPERATIONS_AT_MOST


def test_of_a_long_message_the_ends_count() -> None:
    """Lost if red: what is wanted of a pasted file, or the time that the whole of it takes."""
    filler = "An entry of the log. " * 500
    text = f"Let's use the train. {filler}We decided to stop. {filler}Agreed: at noon."
    assert told(talked((text, "Fine.")), "decision") == ["Let's use the train.", "Agreed: at noon."]
