"""What was asked of AWS beside what the roles allow: each difference as a sentence."""

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .stack import Function, Grant, Stack
from .uses import (
    BY_EVENT_SOURCE,
    BY_LAMBDA,
    LOGIN,
    LOGINS,
    MASTER,
    UNSEEN,
    USES,
    On,
    Use,
)


@dataclass(frozen=True, kw_only=True)
class Call:
    """A call that the suite made."""

    site: str
    operation: str
    on: On


def read_calls(folder: Path) -> list[Call]:
    """All that the processes of all runs kept in this folder."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.open())
    return [Call(**json.loads(line)) for line in sorted(set(lines))]


def differences(calls: Sequence[Call], stack: Stack, uses: Sequence[Use] = USES) -> list[str]:
    """What is wrong, nothing if each function may do what it does and no more."""
    known = {(one.site, one.operation): one for one in uses}
    made: dict[Use, list[Call]] = {one: [] for one in uses}
    found = []
    for call in calls:
        use = known.get((call.site, call.operation))
        if use is None:
            found.append(f"{call.site} asks for {call.operation}, and no one says whose call it is")
        else:
            made[use].append(call)
    found += [
        f"{one.site} asks for {one.operation}, and no test has it do so"
        for one, some in made.items()
        if not some and any(map(one.reached_by, stack.functions))
    ]
    for function in stack.functions:
        needed = {
            (use, pair)
            for use, some in made.items()
            if use.reached_by(function)
            for call in some
            for pair in use.asks(call.on, stack.stage)
        }
        found += sorted(
            f"{function.name} may not {action} on {resource}, and does: {use.site}"
            for use, (action, resource) in needed
            if not function.may(action, resource)
        )
        found += too_much(function, [pair for _, pair in needed])
    return found


def too_much(function: Function, needed: Iterable[tuple[str, str]]) -> Iterator[str]:
    """What the function may do and never does."""
    pairs = list(needed)
    for grant in function.allowed:
        if grant.action in BY_LAMBDA or grant.resource in UNSEEN:
            continue
        if grant.action in BY_EVENT_SOURCE and grant.resource in function.takes:
            continue
        if grant.action == LOGIN and _is_own_login(function, grant):
            continue
        if any(grant.covers(action, resource) for action, resource in pairs):
            continue
        yield f"{function.name} may {grant.action} on {grant.resource}, and does not ({grant.sid})"


def _is_own_login(function: Function, grant: Grant) -> bool:
    users = {user for variable, user in LOGINS.items() if variable in function.variables}
    if MASTER in function.variables:
        users = {"pal_master"}
    return grant.resource.rpartition("/")[2] in users
