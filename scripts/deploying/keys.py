"""API keys on a deployed stage, which the migrate function makes: it alone may log in as owner."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from .account import Account
from .console import Console
from .errors import DeployError
from .functions import invoke
from .stacks import Stack

_SMOKE = "smoke"


def print_key(
    account: Account, stage: str, tenant: str, scopes: Sequence[str], console: Console
) -> None:
    """Make a key for a tenant, the tenant as well if there is none; it is shown this once."""
    stack = Stack(account, f"palimpsest-{stage}")
    made = _ask(account, stack, {"create": {"tenant": tenant, "scopes": list(scopes)}})
    console.say(f"{made['keyId']} {made['key']}")


@contextmanager
def short_lived(account: Account, stack: Stack) -> Iterator[str]:
    """A key of the tenant `smoke` that only holds sessions, revoked at the end."""
    made = _ask(account, stack, {"create": {"tenant": _SMOKE, "scopes": ["sessions"]}})
    try:
        yield str(made["key"])
    finally:
        _ask(account, stack, {"revoke": {"tenantId": made["tenantId"], "keyId": made["keyId"]}})


def _ask(account: Account, stack: Stack, order: dict[str, Any]) -> dict[str, Any]:
    function = stack.physical_id("Migrate")
    if function is None:
        raise DeployError(f"There is no {stack.name} with a migrate function; deploy it first.")
    return invoke(account, function, {"keys": order})
