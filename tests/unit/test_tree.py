"""The tree's operations: what each does, and that an invalid one does nothing at all."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chalicelib.context.shapes import Node, Tree
from chalicelib.context.tree import (
    DEPTH_AT_MOST,
    OPERATIONS_AT_MOST,
    OUTCOME_AT_MOST,
    SOURCES_AT_MOST,
    TEXT_AT_MOST,
    Abandon,
    Ask,
    Decide,
    InvalidOperation,
    Open,
    Operation,
    Resolve,
    Switch,
    apply_all,
    apply_operation,
    closed_below,
    path_to,
    tree_view,
)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(hours=1)


def grown(*ops: Operation, tree: Tree | None = None, at: datetime = NOON) -> Tree:
    """The tree after these, all of which hold."""
    tree = tree or Tree()
    for op in ops:
        tree = apply_operation(tree, op, sources=("msg_1",), at=at)
    return tree


def node(tree: Tree, number: int) -> Node:
    return next(one for one in tree.nodes if one.number == number)


# ── what each does ───────────────────────────────────────────────────────────────────────────
def test_what_is_opened_is_where_the_talk_goes_on() -> None:
    """Lost if red: decisions that stand below what was talked about an hour ago."""
    tree = grown(Open("topic", "Trip"), Open("task", "Book the flight"), Ask("Which airline?"))
    assert [one.text for one in path_to(tree.nodes, tree.active)] == ["Trip", "Book the flight"]
    assert node(tree, 3).parent == 2
    tree = grown(Open("topic", "Taxes", None), Decide("File in May."), tree=tree)
    assert tree.active == 4
    assert node(tree, 4).parent is None
    assert (node(tree, 5).parent, node(tree, 5).status) == (4, "resolved")
    tree = grown(Open("topic", "Hotel", 1), tree=tree)
    assert node(tree, 6).parent == 1
    tree = grown(Switch(2), tree=tree)
    assert tree.active == 2


def test_decision_is_settled_when_it_is_taken_and_keeps_its_time_and_source() -> None:
    """Lost if red: when, and in which message, something was decided."""
    [decided] = grown(Decide("We use Postgres.")).nodes
    assert decided == Node(
        number=1,
        parent=None,
        kind="decision",
        text="We use Postgres.",
        opened_at=NOON,
        status="resolved",
        sources=("msg_1",),
        closed_at=NOON,
    )


@pytest.mark.parametrize(
    ("op", "status"),
    [
        pytest.param(Resolve(1, "All is booked."), "resolved", id="resolve"),
        pytest.param(Abandon(1, "No time."), "abandoned", id="abandon"),
    ],
)
def test_closing_a_branch_closes_what_is_open_in_it_and_spares_its_decisions(
    op: Operation, status: str
) -> None:
    """Lost if red: a task that is asked after for ever, or a decision that its topic took along."""
    tree = grown(
        Open("topic", "Trip"),
        Ask("When?"),
        Decide("By train."),
        Resolve(2, "In May."),
        Open("task", "Book"),
        Ask("Which class?"),
    )
    tree = grown(op, tree=tree, at=LATER)
    assert [one.status for one in tree.nodes] == [status, "resolved", "resolved", status, status]
    assert node(tree, 2).outcome == "In May."
    assert node(tree, 2).closed_at == node(tree, 3).closed_at == NOON
    assert node(tree, 1).closed_at == node(tree, 5).closed_at == LATER
    assert tree.active is None


def test_talk_goes_on_in_the_nearest_node_that_is_still_open() -> None:
    """Lost if red: what follows, told as a part of something that is over."""
    tree = grown(Open("topic", "a"), Open("topic", "b"), Open("task", "c"))
    assert grown(Resolve(3, "done"), tree=tree).active == 2
    assert grown(Resolve(2, "done"), tree=tree).active == 1
    assert grown(Resolve(1, "done"), tree=tree).active is None
    aside = grown(Open("topic", "d", None), tree=tree)
    assert grown(Resolve(1, "done"), tree=aside).active == 4


def test_answer_of_a_question_is_its_outcome_and_both_messages_its_sources() -> None:
    """Lost if red: what was answered, or where."""
    tree = grown(Ask("Which city?"))
    tree = apply_operation(tree, Resolve(1, "Oslo."), sources=("msg_2",), at=LATER)
    [asked] = tree.nodes
    assert (asked.status, asked.outcome) == ("resolved", "Oslo.")
    assert asked.sources == ("msg_1", "msg_2")


def test_outcome_comes_before_what_was_folded_into_the_node() -> None:
    """Lost if red: what came of a topic, to what came of its parts."""
    tree = grown(Open("topic", "Trip"))
    tree = replace(tree, nodes=(replace(tree.nodes[0], outcome="Visa: not needed"),))
    [closed] = grown(Resolve(1, "Booked."), tree=tree).nodes
    assert closed.outcome == "Booked.; Visa: not needed"


def test_operations_own_source_is_told_rather_than_all_of_the_turns() -> None:
    """Lost if red: that a line can be traced to the one message it comes from."""
    op = Decide("So be it.", sources=("msg_9",))
    tree = apply_operation(Tree(), op, sources=("msg_1", "msg_9"), at=NOON)
    assert tree.nodes[0].sources == ("msg_9",)


# ── what does not hold ───────────────────────────────────────────────────────────────────────
GROUND = grown(
    Open("topic", "Trip"),
    Ask("When?"),
    Decide("By train."),
    Open("task", "Pack"),
    Resolve(4, "Packed."),
)
DEEP = grown(*(Open("topic", f"level {level}") for level in range(DEPTH_AT_MOST - 1)))


@pytest.mark.parametrize(
    ("tree", "op"),
    [
        pytest.param(GROUND, Switch(9), id="switch-to-nothing"),
        pytest.param(GROUND, Switch(2), id="switch-to-a-question"),
        pytest.param(GROUND, Switch(3), id="switch-to-a-decision"),
        pytest.param(GROUND, Switch(4), id="switch-to-what-is-closed"),
        pytest.param(GROUND, Switch(1), id="switch-to-where-it-is"),
        pytest.param(GROUND, Open("topic", "x", 9), id="open-below-nothing"),
        pytest.param(GROUND, Open("topic", "x", 2), id="open-below-a-question"),
        pytest.param(GROUND, Open("task", "x", 4), id="open-below-what-is-closed"),
        pytest.param(GROUND, Open("decision", "x"), id="open-a-decision"),  # type: ignore[arg-type]
        pytest.param(GROUND, Open("topic", " \n\t"), id="open-blank"),
        pytest.param(GROUND, Decide("\u200b\u200d\u202e"), id="decide-invisible"),
        pytest.param(GROUND, Ask(""), id="ask-nothing"),
        pytest.param(GROUND, Ask("  WHEN? "), id="ask-again"),
        pytest.param(GROUND, Open("topic", "trip", None), id="open-again"),
        pytest.param(GROUND, Decide("by train"), id="decide-again"),
        pytest.param(GROUND, Resolve(3, "x"), id="resolve-a-decision"),
        pytest.param(GROUND, Resolve(4, "x"), id="resolve-again"),
        pytest.param(GROUND, Resolve(0, "x"), id="resolve-the-root"),
        pytest.param(GROUND, Resolve(2, " "), id="resolve-without-outcome"),
        pytest.param(GROUND, Abandon(7, "x"), id="abandon-nothing"),
        pytest.param(DEEP, Open("task", "x"), id="open-too-deep"),
    ],
)
def test_invalid_operation_changes_nothing(tree: Tree, op: Operation) -> None:
    """Lost if red: the tree, to one slip of a model."""
    with pytest.raises(InvalidOperation):
        apply_operation(tree, op, sources=(), at=NOON)
    assert apply_all(tree, [op], sources=(), at=NOON) == (tree, 1)


def test_folded_node_is_gone_for_operations() -> None:
    """Lost if red: a talk that goes on in a node that no prompt tells of."""
    folded = tuple(replace(one, folded=one.number == 1) for one in grown(Open("topic", "a")).nodes)
    tree = Tree(nodes=folded, active=None, count=1)
    for op in (Switch(1), Open("task", "b", 1), Resolve(1, "x")):
        with pytest.raises(InvalidOperation):
            apply_operation(tree, op, sources=(), at=NOON)
    assert grown(Open("topic", "a"), tree=tree).active == 2


def test_deepest_place_still_takes_questions_and_decisions() -> None:
    """Lost if red: a decision, because it was taken in a detail of a detail."""
    tree = grown(Ask("Which?"), Decide("This."), tree=DEEP)
    assert [one.parent for one in tree.nodes[-2:]] == [DEPTH_AT_MOST - 1] * 2
    assert len(path_to(tree.nodes, tree.count)) == DEPTH_AT_MOST


def test_decision_may_be_taken_again_after_another() -> None:
    """Lost if red: the last word, where someone changes their mind twice."""
    tree = grown(Decide("Postgres."), Decide("MySQL."), Decide("Postgres."))
    assert [one.text for one in tree.nodes] == ["Postgres.", "MySQL.", "Postgres."]


def test_question_may_be_asked_again_once_it_was_answered() -> None:
    """Lost if red: that it is open again."""
    tree = grown(Ask("When?"), Resolve(1, "In May."), Ask("When?"))
    assert [one.status for one in tree.nodes] == ["resolved", "open"]


def test_one_bad_operation_costs_none_of_the_others() -> None:
    """Lost if red: a turn's decisions, to a wrong number beside them."""
    ops = [Open("topic", "Trip"), Switch(77), Decide("By train."), Resolve(5, "x")]
    tree, refused = apply_all(Tree(), ops, sources=["msg_1"], at=NOON)
    assert refused == 2
    assert [one.text for one in tree.nodes] == ["Trip", "By train."]


def test_one_turn_makes_only_so_many_changes() -> None:
    """Lost if red: a tree that one runaway answer fills."""
    ops = [Ask(f"Question {number}?") for number in range(50)]
    tree, refused = apply_all(Tree(), ops, sources=[], at=NOON)
    assert len(tree.nodes) == OPERATIONS_AT_MOST
    assert refused == 50 - OPERATIONS_AT_MOST


# ── texts ────────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("  two\n\nlines\tof\r\nit ", "two lines of it"),
        ("a\u202eb\u200bc\U000e0041d", "abcd"),
        ("nul\x00 and bell\x07", "nul and bell"),
        ("lone \ud800 surrogate", "lone surrogate"),
        ('</execution_state> "quoted" \\', '</execution_state> "quoted" \\'),
        ("x" * 500, "x" * (TEXT_AT_MOST - 1) + "…"),
        ("👩‍👧 家族", "👩‍👧 家族"),
    ],
    ids=["lines", "unseen", "controls", "surrogate", "markup", "long", "joined"],
)
def test_text_is_kept_on_one_line_with_nothing_that_is_not_seen(given: str, kept: str) -> None:
    """Lost if red: a node that Postgres cannot hold, or that says to a model what no one sees."""
    assert grown(Open("topic", given)).nodes[0].text == kept


@given(st.text(max_size=800), st.text(max_size=800))
def test_any_text_is_refused_or_kept_within_its_bounds(text: str, outcome: str) -> None:
    """Lost if red: what a model may write into a row of ours."""
    tree, _ = apply_all(Tree(), [Open("topic", text), Resolve(1, outcome)], sources=(), at=NOON)
    for one in tree.nodes:
        assert 0 < len(one.text) <= TEXT_AT_MOST
        assert one.text.isprintable() or "\u200d" in one.text or "\u200c" in one.text
        assert one.outcome is None or 0 < len(one.outcome) <= OUTCOME_AT_MOST
        one.text.encode()


def test_only_so_many_sources_are_kept_and_none_twice() -> None:
    """Lost if red: a row that grows with every message of a long task."""
    sources = [f"msg_{number}" for number in range(50)]
    tree = apply_operation(Tree(), Ask("?!"), sources=[*sources, "msg_49"], at=NOON)
    assert tree.nodes[0].sources == tuple(sources[-SOURCES_AT_MOST:])


# ── any operations at all ────────────────────────────────────────────────────────────────────
NUMBERS = st.integers(0, 12)
WORDS = st.sampled_from(["a", "b", "c", "d"])
ANY = st.one_of(
    st.builds(Open, st.sampled_from(["topic", "task"]), WORDS, st.none() | NUMBERS),
    st.builds(Open, st.sampled_from(["topic", "task"]), WORDS),
    st.builds(Switch, NUMBERS),
    st.builds(Decide, WORDS),
    st.builds(Ask, WORDS),
    st.builds(Resolve, NUMBERS, WORDS),
    st.builds(Abandon, NUMBERS, WORDS),
)


@given(st.lists(ANY, max_size=40))
def test_tree_stays_one_whatever_is_done_to_it(ops: list[Operation]) -> None:
    """Lost if red: a tree with two active paths, a loop, or something open in what is closed."""
    tree = Tree()
    for op in ops:
        tree, _ = apply_all(tree, [op], sources=(), at=NOON)
    numbers = [one.number for one in tree.nodes]
    assert numbers == list(range(1, tree.count + 1))
    known = {one.number: one for one in tree.nodes}
    for one in tree.nodes:
        assert one.parent is None or one.parent < one.number
        assert len(path_to(tree.nodes, one.number)) <= DEPTH_AT_MOST
        if one.parent is not None:
            assert known[one.parent].kind in ("topic", "task")
            if one.status == "open":
                assert known[one.parent].status == "open"
        assert (one.closed_at is None) == (one.status == "open")
    if tree.active is not None:
        assert known[tree.active].status == "open"
        assert known[tree.active].kind in ("topic", "task")


# ── all of it, for callers ───────────────────────────────────────────────────────────────────
def test_view_shows_each_node_with_its_messages_and_the_one_active_path() -> None:
    """Lost if red: what `GET …/tree` is for."""
    tree = grown(Open("topic", "Trip"), Open("task", "Book"), Decide("By train."))
    tree = grown(Resolve(2, "Booked."), tree=tree, at=LATER)
    view = tree_view(tree.nodes, tree.active)
    assert (view["active"], view["path"]) == ("n1", ["n1"])
    assert view["nodes"][0] == {
        "id": "n1",
        "kind": "topic",
        "text": "Trip",
        "status": "open",
        "sources": ["msg_1"],
        "folded": False,
        "openedAt": NOON,
    }
    assert view["nodes"][1]["parentId"] == "n1"
    assert view["nodes"][1]["outcome"] == "Booked."
    assert view["nodes"][1]["closedAt"] == LATER
    assert tree_view((), None) == {"active": None, "path": [], "nodes": []}


def test_what_was_folded_open_is_closed_with_its_topic() -> None:
    """Lost if red: a task of an abandoned plan, promoted as a commitment at the end."""
    tree = grown(Open("topic", "Trip"), Ask("When?"), Open("task", "Pack"), Ask("What?"))
    folded = [replace(one, folded=True) for one in tree.nodes[1:]]
    top = replace(tree.nodes[0], status="abandoned", closed_at=LATER)
    closed = closed_below([top, *folded])
    assert [one.status for one in closed] == ["abandoned"] * 4
    assert {one.closed_at for one in closed} == {LATER}
    assert closed_below(tree.nodes) == list(tree.nodes)
