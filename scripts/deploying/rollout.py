"""A deployment to AWS, step by step; what fails leaves serving what served before."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from . import keys, smoke
from .account import Account
from .artifacts import Bucket, upload
from .console import Console
from .errors import DeployError, explain
from .functions import DATABASE_STEPS, CallFailed, NewCode, code_of, invoke
from .stacks import ChangeSet, Stack, StackFailed, parameter_list, show
from .versions import marked, values_of

Smoke = Callable[[Mapping[str, str], str], None]


@dataclass(frozen=True, kw_only=True)
class _Before:
    """What served before: the template, and the parameters' values."""

    template: str
    parameters: Mapping[str, str]


def stack_name(stage: str) -> str:
    """The stack of a stage."""
    return f"palimpsest-{stage}"


def deploy(
    account: Account,
    stage: str,
    template: dict[str, Any],
    folder: Path,
    *,
    given: Mapping[str, str],
    console: Console,
    stack: Stack | None = None,
    try_out: Smoke = smoke.try_out,
) -> None:
    """Put the packaged stage into the account; DeployError says what stands when it fails."""
    stack = stack or Stack(account, stack_name(stage))
    new = stack.is_new()
    now = {} if new else stack.parameters()
    parameters = parameter_list(template, given, now)
    console.step(f"Uploading to account {account.id}, {account.region}")
    bucket = Bucket(account, stage)
    if bucket.ensure():
        console.say(f"  made the bucket {bucket.name}")
    uploaded = marked(upload(template, folder, bucket), values_of(template, given, now))
    url = bucket.put_template(json.dumps(uploaded, sort_keys=True))
    console.step(f"What would change in {stack.name}")
    changes = stack.propose(url, parameters, new=new, why="scripts/deploy")
    before: _Before | None = None
    if changes is None:
        console.say("  nothing: the stack is as it was packaged")
        _prepare_database(account, stack, console)
    else:
        show(changes, console)
        if not _agreed(account, stack, changes, console, new=new):
            console.say("Nothing was changed.")
            return
        if not new:
            before = _Before(template=stack.template(), parameters=stack.parameters())
        _change(account, stack, changes, console, new=new)
    console.step("A streamed turn through the real URLs")
    try:
        _smoke(account, stack, console, try_out)
    except DeployError as exc:
        _undo(stack, bucket, before, exc, console)
    except (BotoCoreError, ClientError) as exc:
        # nothing is known against it, and AWS takes no change from us now
        raise DeployError(
            f"{explain(exc)} {stack.name} has its new version, which was not tried out."
        ) from exc
    console.step(f"{stack.name} is deployed")
    for name, value in sorted(stack.outputs().items()):
        console.say(f"  {name}: {value}")


def _agreed(
    account: Account, stack: Stack, changes: ChangeSet, console: Console, *, new: bool
) -> bool:
    """Whether the changes are wanted; they are forgotten where they are not, or no one says so."""
    agreed = False
    try:
        agreed = console.agreed(f"Change {stack.name} in account {account.id}, {account.region}?")
    finally:
        if not agreed:
            stack.discard(changes, new=new)
    return agreed


def _change(
    account: Account, stack: Stack, changes: ChangeSet, console: Console, *, new: bool
) -> None:
    """Migrate, then change the stack; or the other way about where there is no stack yet."""
    swaps = [] if new else _new_code(account, stack, changes)
    # a stack from before it had both functions has its database made ready at the end
    ready_before = bool(swaps)
    try:
        if ready_before:
            console.step("Migrating with the new code; traffic is still the old code's")
            try:
                for swap in swaps:
                    swap.put()
                for swap in swaps:
                    _tell(swap.function, invoke(account, swap.function, {}), console)
            except BaseException:
                _take_back(swaps)
                stack.discard(changes, new=False)
                console.say("  the functions have their old code again, the change set is gone")
                raise
        console.step(f"{'Making' if new else 'Changing'} the stack; this takes minutes")
        try:
            stack.execute(changes, console)
        except StackFailed:
            # where CloudFormation has not come to them, it has not set them back, either
            _take_back(swaps)
            raise
    finally:
        for swap in swaps:
            swap.tidy()
    if not ready_before:
        _prepare_database(account, stack, console)


def _new_code(account: Account, stack: Stack, changes: ChangeSet) -> list[NewCode]:
    """The database's functions, if both templates have all that the new one has."""
    old = json.loads(stack.template(processed=True))
    new = json.loads(stack.template(change_set=changes.name, processed=True))
    swaps = []
    for logical_id in DATABASE_STEPS:
        was, becomes = code_of(old, logical_id), code_of(new, logical_id)
        if becomes is None:
            continue
        if was is None:
            return []
        swaps.append(NewCode(account, stack, logical_id, old=was, new=becomes))
    return swaps


def _take_back(swaps: list[NewCode]) -> None:
    for swap in swaps:
        swap.take_back()


def _prepare_database(account: Account, stack: Stack, console: Console) -> None:
    """Bootstrap and migrate, as the stack has them; both are safe to repeat."""
    console.step("Making the database ready")
    for logical_id in DATABASE_STEPS:
        function = stack.physical_id(logical_id)
        if function is None:
            continue
        try:
            _tell(function, invoke(account, function, {}), console)
        except CallFailed as exc:
            raise DeployError(
                f"{exc} The stack stands, its database is not ready: mend it and deploy again."
            ) from exc


def _tell(function: str, answer: Mapping[str, Any], console: Console) -> None:
    applied = answer.get("applied")
    if applied is not None:
        console.say(f"  {function}: " + (", ".join(applied) or "nothing to apply"))
    else:
        console.say(f"  {function}: done")


def _smoke(account: Account, stack: Stack, console: Console, try_out: Smoke) -> None:
    with keys.short_lived(account, stack) as key:
        try_out(stack.outputs(), key)
    console.say("  healthz, and a turn through each of ApiUrl and StreamUrl: well")


def _undo(
    stack: Stack, bucket: Bucket, before: _Before | None, cause: DeployError, console: Console
) -> None:
    """Go back to what served before; raises DeployError in any case."""
    if before is None:
        raise DeployError(
            f"{cause} There is nothing older to go back to; the stack stands as it is."
        ) from cause
    console.say(f"  {cause}")
    console.step("Going back to what served before")
    declared = json.loads(before.template).get("Parameters", {})
    parameters: list[dict[str, Any]] = [
        # what is not shown to us can only be kept
        {"ParameterKey": name, "UsePreviousValue": True}
        if declared.get(name, {}).get("NoEcho")
        else {"ParameterKey": name, "ParameterValue": value}
        for name, value in before.parameters.items()
    ]
    url = bucket.put_template(before.template)
    changes = stack.propose(url, parameters, new=False, why="scripts/deploy, going back")
    if changes is not None:
        stack.execute(changes, console)
    raise DeployError(
        f"{cause} The stack is back at its old template and code; the migrations stay, and the old "
        "code works with them."
    ) from cause
