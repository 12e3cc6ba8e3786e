"""`scripts/deploy --local`: the packaged stack on an emulator."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ...packagelib.expansion import expand
from ..account import Account
from ..artifacts import Bucket, upload
from . import building, comparison
from .building import Built
from .kinds import KINDS
from .parameters import parameter_values, values_of
from .place import Place
from .server import Emulator


def deploy(
    template: dict[str, Any],
    folder: Path,
    *,
    stage: str,
    emulator: Emulator,
    given: Mapping[str, str],
    say: Callable[[str], None],
) -> Built:
    """Make or update the stack there; DeployError names what the emulator has not made."""
    account = emulator.account()
    place = place_of(stage, emulator, account)
    bucket = Bucket(account, stage, tls=False)
    bucket.ensure()
    uploaded = upload(template, folder, bucket)
    parameters = parameter_values(template, dict(given), account, place.stack)
    plain = {name: value for name, value in parameters.items() if not name.startswith("AWS::")}
    expanded = expand(uploaded, plain, region=account.region)
    built = building.build(expanded, values_of(expanded, parameters), place, say)
    comparison.require_all(built, place)
    for name, reason in sorted(built.absent.items()):
        say(f"  not emulated: {name}, {reason}")
    for kind in sorted({one["Type"] for one in built.resources.values()}):
        if emulator.kind == "moto" and (lost := KINDS[kind].get("lost")):
            say(f"  not kept by moto: {', '.join(lost)} of {kind}")
    return built


def place_of(stage: str, emulator: Emulator, account: Account) -> Place:
    """The stage's stack on this emulator."""
    return Place(account=account, stack=f"palimpsest-{stage}", emulator=emulator.kind)
