"""Headers that an agent's tool sends, and the secrets in them.

A value is plain text in which `{{secret:name}}` stands for one of the tenant's secrets. It is
looked up when a call is made, so a secret that was changed holds from the next call, and it is in
no definition, log or answer.
"""

import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from chalicelib.shapes import Text, wrong_at
from chalicelib.texts import printable
from chalicelib.tools.base import ToolFailed

ReadSecret = Callable[[str, str], Awaitable[str | None]]
"""The secret of a tenant (its id) by name; None where there is none."""

_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_SECRET: Final = re.compile(r"\{\{secret:([A-Za-z0-9_.-]{1,64})\}\}")
# these are the connection's
_NOT_OURS: Final = frozenset(
    {
        "accept-encoding",
        "connection",
        "content-encoding",
        "content-length",
        "expect",
        "host",
        "keep-alive",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)


def _legal(headers: dict[str, str]) -> dict[str, str]:
    seen = set()
    for name, value in headers.items():
        if not _NAME.fullmatch(name):
            raise wrong_at((printable(name[:100]),), "is no name of a header")
        if name.lower() in _NOT_OURS:
            raise wrong_at((name,), "cannot be set: it is made for each call")
        if name.lower() in seen:
            raise wrong_at((name,), "is there twice")
        if _CONTROL.search(value):
            raise wrong_at((name,), "must not hold line breaks or control characters")
        if "{{" in _SECRET.sub("", value):
            raise wrong_at((name,), "must name a secret as {{secret:name}}")
        seen.add(name.lower())
    return headers


Headers = Annotated[
    dict[str, Annotated[Text, Field(max_length=4000)]],
    Field(max_length=32),
    AfterValidator(_legal),
]


async def fill_headers(
    headers: Mapping[str, str], *, tenant_id: str, secret: ReadSecret
) -> dict[str, str]:
    """The headers with the tenant's secrets in them; raises ToolFailed for one that is missing."""
    names = {name for value in headers.values() for name in _SECRET.findall(value)}
    found: dict[str, str] = {}
    for name in sorted(names):
        value = await secret(tenant_id, name)
        # pasted ones end in a line break
        value = (value or "").strip()
        if not value:
            raise ToolFailed(f"The secret `{name}` that this tool needs has not been set.")
        if _CONTROL.search(value):
            raise ToolFailed(f"The secret `{name}` holds line breaks, and cannot go into a header.")
        found[name] = value
    return {
        header: _SECRET.sub(lambda match: found[match[1]], value)
        for header, value in headers.items()
    }
