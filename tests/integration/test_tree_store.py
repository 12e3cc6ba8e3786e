"""The tree on a real Postgres: what has changed is written, once, by whoever holds the lease."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from chalicelib.context.fold import fold, render_tree
from chalicelib.context.shapes import Node, Tree
from chalicelib.context.tree import (
    Ask,
    Decide,
    Open,
    Operation,
    Resolve,
    apply_operation,
    tree_view,
)
from chalicelib.context.tree_store import read_nodes, read_tree, write_tree
from chalicelib.ids import new_id
from tests.support.stack import Stack

NOON = datetime(2026, 3, 1, 12, 0, 0, 123456, tzinfo=UTC)
LEASE = "worker-1"


def grown(*ops: Operation, tree: Tree | None = None) -> Tree:
    tree = tree or Tree()
    for op in ops:
        tree = apply_operation(tree, op, sources=("msg_a", "msg_b"), at=NOON)
    return tree


GROWN = grown(
    Open("topic", 'Trip "to" <Lisbon> 👩‍👧'),
    Ask("When?"),
    Resolve(2, "In May."),
    Open("task", "Book"),
    Decide("By train.", sources=("msg_c",)),
)


class Session:
    """A session whose state a worker holds, and its tree as the store has it."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        made = stack.http().call("POST", "/v1/sessions", {"agentName": "guide"})
        self.id = str(made.json["id"])
        stack.database.rows(
            "INSERT INTO pal.session_states (session_id, tenant_id, worker) VALUES (%s, %s, %s)"
            " ON CONFLICT (session_id) DO UPDATE SET worker = excluded.worker",
            self.id,
            stack.tenant,
            LEASE,
        )

    def read(self, tenant: str | None = None) -> Tree:
        async def read() -> Tree:
            async with self.stack.node.services.db.tenant(tenant or self.stack.tenant) as tx:
                return await read_tree(tx, self.id)

        return self.stack.node.run(read())

    def nodes(self, tenant: str | None = None) -> list[Node]:
        async def read() -> list[Node]:
            async with self.stack.node.services.db.tenant(tenant or self.stack.tenant) as tx:
                return await read_nodes(tx, self.id)

        return self.stack.node.run(read())

    async def writing(
        self,
        before: Tree,
        after: Tree,
        *,
        lease: str = LEASE,
        ordinal: int = 1,
        tenant: str | None = None,
    ) -> bool:
        async with self.stack.node.services.db.tenant(tenant or self.stack.tenant) as tx:
            return await write_tree(
                tx,
                self.id,
                before,
                after,
                rendered=render_tree(after),
                ordinal=ordinal,
                lease=lease,
            )

    def write(self, before: Tree, after: Tree, **more: object) -> bool:
        return self.stack.node.run(self.writing(before, after, **more))  # type: ignore[arg-type]

    def state(self) -> Sequence[object]:
        [row] = self.stack.database.rows(
            "SELECT tree, active_node, node_count, tree_ordinal FROM pal.session_states"
            " WHERE session_id = %s",
            self.id,
        )
        return row


@pytest.fixture
def session(stack: Stack) -> Session:
    return Session(stack)


def test_tree_comes_back_as_it_was_written(session: Session) -> None:
    """Lost if red: any part of what the conversation is doing."""
    assert session.read() == Tree()
    assert session.write(Tree(), GROWN, ordinal=3)
    assert session.read() == GROWN
    assert session.nodes() == list(GROWN.nodes)
    assert session.state() == (render_tree(GROWN), 3, 4, 3)


def test_session_without_a_state_has_an_empty_tree(session: Session, stack: Stack) -> None:
    """Lost if red: sessions from before there were trees."""
    stack.database.rows("DELETE FROM pal.session_states WHERE session_id = %s", session.id)
    assert session.read() == Tree()
    assert session.nodes() == []
    assert not session.write(Tree(), GROWN)


def test_only_what_has_changed_is_written(session: Session, stack: Stack) -> None:
    """Lost if red: a turn that costs as much as its session is long."""
    session.write(Tree(), GROWN)
    places = "SELECT number, ctid::text FROM pal.session_nodes WHERE session_id = %s"
    before = dict(stack.database.rows(places, session.id))
    after = grown(Resolve(3, "Booked."), Ask("And back?"), tree=GROWN)
    assert session.write(GROWN, after, ordinal=2)
    assert session.read() == after
    now = dict(stack.database.rows(places, session.id))
    assert {number for number in now if before.get(number) != now[number]} == {3, 5}
    assert session.write(after, after, ordinal=3)
    assert dict(stack.database.rows(places, session.id)) == now
    assert session.state()[3] == 3


def test_folded_nodes_are_read_no_more_but_for_audits(session: Session) -> None:
    """Lost if red: what a long conversation saves, or what it went through."""
    tree = grown(Open("topic", "Flat"))
    for number in range(40):
        tree = grown(Ask(f"Room {number}, of which there is much to be said, is it?"), tree=tree)
    folded = fold(tree)
    assert session.write(Tree(), folded)
    shown = tuple(one for one in folded.nodes if not one.folded)
    assert len(shown) < len(tree.nodes)
    assert session.read() == replace(folded, nodes=shown)
    assert session.nodes() == list(folded.nodes)
    view = tree_view(session.nodes(), session.read().active)
    assert len(view["nodes"]) == 41
    assert [one["folded"] for one in view["nodes"]].count(True) == 41 - len(shown)
    assert all(one["sources"] == ["msg_a", "msg_b"] for one in view["nodes"])


def test_folded_task_of_a_topic_that_was_closed_later_is_closed(session: Session) -> None:
    """Lost if red: what was given up, promoted as a commitment at the end."""
    tree = grown(Open("topic", "Flat"), Open("task", "Paint"))
    hidden = replace(tree, nodes=(tree.nodes[0], replace(tree.nodes[1], folded=True)), active=1)
    session.write(Tree(), hidden)
    read = session.read()
    session.write(read, grown(Resolve(1, "Sold."), tree=read))
    assert [one.status for one in session.nodes()] == ["resolved", "resolved"]


@pytest.mark.parametrize("lost", ["lease", "free", "sealed"])
def test_nothing_is_written_without_the_lease_or_after_the_end(
    session: Session, stack: Stack, lost: str
) -> None:
    """Lost if red: a sealed tree, or another worker's, to one that came late."""
    session.write(Tree(), GROWN)
    if lost == "sealed":
        query = "UPDATE pal.session_states SET sealed_at = now() WHERE session_id = %s"
        stack.database.rows(query, session.id)
    elif lost == "free":
        query = "UPDATE pal.session_states SET worker = NULL WHERE session_id = %s"
        stack.database.rows(query, session.id)
    lease = "worker-2" if lost == "lease" else LEASE
    state = session.state()
    after = grown(Ask("And back?"), Decide("No."), tree=GROWN)
    assert not session.write(GROWN, after, lease=lease, ordinal=9)
    assert session.read() == GROWN
    assert session.state() == state


def test_no_tenant_reads_or_writes_anothers_tree(session: Session, stack: Stack) -> None:
    """Lost if red: what someone else's customers talk about."""
    session.write(Tree(), GROWN)
    assert session.read(stack.other_tenant) == Tree()
    assert session.nodes(stack.other_tenant) == []
    assert not session.write(Tree(), grown(Ask("Hm?")), tenant=stack.other_tenant)
    assert session.read() == GROWN


def test_tree_of_a_session_that_is_gone_is_not_written(session: Session, stack: Stack) -> None:
    """Lost if red: upkeep that fails for a session someone deleted meanwhile."""
    session.write(Tree(), GROWN)
    assert stack.http().call("DELETE", f"/v1/sessions/{session.id}").status == 204
    assert not session.write(GROWN, grown(Ask("Hm?"), tree=GROWN))
    assert session.read() == Tree()
    count = "SELECT count(*) FROM pal.session_nodes WHERE session_id = %s"
    assert stack.database.one(count, session.id) == 0


def test_delete_beside_a_write_ends_in_no_deadlock(
    make_stack: Callable[..., Stack],
) -> None:
    """Lost if red: a delete that fails because the work behind a reply was at it."""
    stack = make_stack()
    http = stack.http()

    async def both(session: Session) -> tuple[bool, int]:
        written, answer = await asyncio.gather(
            session.writing(Tree(), GROWN),
            asyncio.to_thread(http.call, "DELETE", f"/v1/sessions/{session.id}"),
        )
        return written, answer.status

    for _ in range(15):
        session = Session(stack)
        _, status = asyncio.run_coroutine_threadsafe(both(session), stack.node.on.loop).result(20)
        assert status == 204
        assert session.nodes() == []


def test_next_turn_reads_as_little_of_a_long_session(session: Session, stack: Stack) -> None:
    """Lost if red: that turn 2,000 costs what turn 100 does."""
    stack.database.rows(
        "INSERT INTO pal.session_nodes (session_id, tenant_id, number, kind, text, status, folded,"
        " opened_at) SELECT %s, %s, n, 'topic', 'x', 'open', n <= 19990, now()"
        " FROM generate_series(1, 20000) n",
        session.id,
        stack.tenant,
    )
    stack.database.rows("ANALYZE pal.session_nodes")
    assert len(session.read().nodes) == 10
    plan = stack.database.rows(
        "EXPLAIN SELECT number FROM pal.session_nodes WHERE session_id = %s AND NOT folded",
        session.id,
    )
    assert "session_nodes_shown" in str(plan)


def test_times_and_sources_survive_to_the_microsecond(session: Session) -> None:
    """Lost if red: a node that counts as changed at every turn."""
    node = Node(
        number=1,
        parent=None,
        kind="task",
        text="x",
        opened_at=NOON,
        status="abandoned",
        outcome="no",
        sources=tuple(new_id("msg") for _ in range(20)),
        closed_at=NOON + timedelta(microseconds=1),
    )
    tree = Tree(nodes=(node,), count=1)
    session.write(Tree(), tree)
    assert session.read() == tree
