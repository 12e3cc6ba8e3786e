"""The execution tree: what a conversation is doing, changed by a few checked operations. Pure.

An operation either holds against the tree as it is, or changes nothing: models and heuristics err,
and what they get wrong costs one operation and no turn.
"""

import json
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final, Literal

from chalicelib.context.shapes import Node, NodeKind, NodeStatus, Tree
from chalicelib.memory.notes import quote
from chalicelib.memory.topics import fold_content

TEXT_AT_MOST: Final = 200
OUTCOME_AT_MOST: Final = 300
DEPTH_AT_MOST: Final = 6
OPERATIONS_AT_MOST: Final = 8
SOURCES_AT_MOST: Final = 20
"""The newest messages that a node is told to come from."""


class InvalidOperation(ValueError):
    """What does not hold against the tree as it is. The message holds no text of a node."""


@dataclass(frozen=True)
class Open:
    """Begin a topic or a task and make it active; `parent` None: right below the root.

    `sources` are the messages that an operation comes from, if that is known more narrowly than for
    all of a turn's; so with the other operations.
    """

    kind: Literal["topic", "task"]
    text: str
    parent: int | Literal["active"] | None = "active"
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Switch:
    """Make an open topic or task the active one."""

    node: int
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Decide:
    """Note a decision below the active node."""

    text: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Ask:
    """Note an open question below the active node."""

    text: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Resolve:
    """Close a node with what came of it; of a question that is its answer."""

    node: int
    outcome: str
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Abandon:
    """Close a node that nothing comes of any more."""

    node: int
    reason: str
    sources: tuple[str, ...] = ()


Operation = Open | Switch | Decide | Ask | Resolve | Abandon


def apply_all(
    tree: Tree, ops: Sequence[Operation], *, sources: Sequence[str], at: datetime
) -> tuple[Tree, int]:
    """The tree after these, one after another, and how many of them were refused.

    What is invalid is left out, and so is what goes beyond `OPERATIONS_AT_MOST`.
    """
    refused = len(ops[OPERATIONS_AT_MOST:])
    for op in ops[:OPERATIONS_AT_MOST]:
        try:
            tree = apply_operation(tree, op, sources=sources, at=at)
        except InvalidOperation:
            refused += 1
    return tree, refused


def apply_operation(tree: Tree, op: Operation, *, sources: Sequence[str], at: datetime) -> Tree:
    """The tree after this. Raises InvalidOperation, and then it is as it was."""
    came_from = tuple(op.sources or sources)
    match op:
        case Open():
            return _open(tree, op, came_from, at)
        case Switch():
            if op.node == tree.active:
                raise InvalidOperation("That is the active node already.")
            return replace(tree, active=_place(tree, op.node).number)
        case Decide():
            return _add(tree, "decision", op.text, tree.active, came_from, at)
        case Ask():
            return _add(tree, "open_question", op.text, tree.active, came_from, at)
        case Resolve():
            return _close(tree, op.node, "resolved", op.outcome, came_from, at)
        case Abandon():
            return _close(tree, op.node, "abandoned", op.reason, came_from, at)


def one_line(text: str, most: int) -> str:
    """The text on one line, with nothing that is not seen; raises InvalidOperation if it is empty.

    As `quote` tells it, without the quotes: so a node is stored as the prompt will show it.
    """
    line: str = json.loads(quote(text, most))
    if all(unicodedata.category(each)[0] in "CZ" for each in line):
        raise InvalidOperation("There is no text in it.")
    return line


def path_to(nodes: Iterable[Node], number: int | None) -> tuple[Node, ...]:
    """The nodes from below the root to this one; those of them that are known."""
    known = {one.number: one for one in nodes}
    path: list[Node] = []
    while number is not None and (node := known.pop(number, None)) is not None:
        path.append(node)
        number = node.parent
    return tuple(reversed(path))


def closed_below(nodes: Sequence[Node]) -> list[Node]:
    """All nodes of a session, those below a closed one closed as it is.

    A node that was folded while it was open is not there any more when its topic is closed.
    """
    known: dict[int, Node] = {}
    for node in sorted(nodes, key=lambda one: one.number):
        above = None if node.parent is None else known.get(node.parent)
        if node.status == "open" and above is not None and above.status != "open":
            node = replace(node, status=above.status, closed_at=above.closed_at)
        known[node.number] = node
    return list(known.values())


def tree_view(nodes: Sequence[Node], active: int | None) -> dict[str, Any]:
    """The tree as callers see it."""
    return {
        "active": None if active is None else f"n{active}",
        "path": [f"n{one.number}" for one in path_to(nodes, active)],
        "nodes": [_view(one) for one in nodes],
    }


def _view(node: Node) -> dict[str, Any]:
    told = {
        "id": f"n{node.number}",
        "parentId": None if node.parent is None else f"n{node.parent}",
        "kind": node.kind,
        "text": node.text,
        "status": node.status,
        "outcome": node.outcome,
        "sources": list(node.sources),
        "folded": node.folded,
        "openedAt": node.opened_at,
        "closedAt": node.closed_at,
    }
    return {key: value for key, value in told.items() if value is not None}


def _open(tree: Tree, op: Open, sources: tuple[str, ...], at: datetime) -> Tree:
    if op.kind not in ("topic", "task"):
        raise InvalidOperation("Only topics and tasks are opened.")
    parent = tree.active if op.parent == "active" else op.parent
    after = _add(tree, op.kind, op.text, parent, sources, at)
    return replace(after, active=after.count)


def _add(
    tree: Tree,
    kind: NodeKind,
    text: str,
    parent: int | None,
    sources: tuple[str, ...],
    at: datetime,
) -> Tree:
    if parent is not None:
        _place(tree, parent)
    # what is opened leaves room for what is asked and decided in it
    most = DEPTH_AT_MOST - 1 if kind in ("topic", "task") else DEPTH_AT_MOST
    if len(path_to(tree.nodes, parent)) >= most:
        raise InvalidOperation("The tree is too deep there.")
    text = one_line(text, TEXT_AT_MOST)
    if _is_there(tree, kind, text, parent):
        raise InvalidOperation("That is there already.")
    decided = kind == "decision"
    node = Node(
        number=tree.count + 1,
        parent=parent,
        kind=kind,
        text=text,
        opened_at=at,
        status="resolved" if decided else "open",
        sources=_newest(sources),
        closed_at=at if decided else None,
    )
    return replace(tree, nodes=(*tree.nodes, node), count=node.number)


def _is_there(tree: Tree, kind: NodeKind, text: str, parent: int | None) -> bool:
    """Whether this is open there; a decision counts until another one is taken there."""
    alike = [one for one in tree.nodes if one.kind == kind and one.parent == parent]
    alike = alike[-1:] if kind == "decision" else [one for one in alike if one.status == "open"]
    return any(fold_content(one.text) == fold_content(text) for one in alike if not one.folded)


def _close(
    tree: Tree,
    number: int,
    status: NodeStatus,
    outcome: str,
    sources: tuple[str, ...],
    at: datetime,
) -> Tree:
    node = _open_node(tree, number)
    outcome = one_line(outcome, OUTCOME_AT_MOST)
    if node.outcome:  # of branches that are folded into it
        outcome = one_line(f"{outcome}; {node.outcome}", OUTCOME_AT_MOST)
    closed = replace(node, outcome=outcome, sources=_newest((*node.sources, *sources)))
    below = _below(tree, number)
    nodes = tuple(
        replace(closed if one.number == number else one, status=status, closed_at=at)
        if one.number in below and one.status == "open"
        else one
        for one in tree.nodes
    )
    active = tree.active
    if active in below:
        above = [one.number for one in path_to(nodes, node.parent) if one.status == "open"]
        active = above[-1] if above else None
    return replace(tree, nodes=nodes, active=active)


def _below(tree: Tree, number: int) -> set[int]:
    """This node and all that stands below it; a node's number is higher than its parent's."""
    below = {number}
    for one in tree.nodes:
        if one.parent in below:
            below.add(one.number)
    return below


def _place(tree: Tree, number: int) -> Node:
    node = _open_node(tree, number)
    if node.kind not in ("topic", "task"):
        raise InvalidOperation("Nothing goes on below that node.")
    return node


def _open_node(tree: Tree, number: int) -> Node:
    for one in tree.nodes:
        if one.number == number and not one.folded:
            if one.status != "open":
                raise InvalidOperation("That node is closed.")
            return one
    raise InvalidOperation("There is no such node.")


def _newest(sources: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(sources))[-SOURCES_AT_MOST:]
