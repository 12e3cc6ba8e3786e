"""The `mcp` kind: each tool of a remote MCP server as one of ours.

A server is somebody else's. What it says of its tools (that one only reads, that one may be
repeated) is a hint for people and decides nothing here: `readOnly`, `idempotent` and `approval`
are the definition's, and hold for all tools of the server. A tool that no model could be offered
is left out, and the others stay.
"""

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from chalicelib.outbound import Refused
from chalicelib.providers.base import ToolSpec
from chalicelib.texts import is_storable
from chalicelib.tools.base import Run, Tool, ToolContext, ToolFailed
from chalicelib.tools.excerpt import beginning, clean
from chalicelib.tools.headers import fill_headers
from chalicelib.tools.mcp_client import Address, McpFailed, McpServer
from chalicelib.tools.mcp_wire import Fault
from chalicelib.tools.schema import schema_fault

if TYPE_CHECKING:
    from mcp_types import CallToolResult

    from chalicelib.tools.definitions import McpTool
    from chalicelib.tools.toolbox import ToolDeps

_log = logging.getLogger(__name__)

FRESH: Final = 300.0
LISTED_WITHIN: Final = 10.0
# of the time that opening the definition's tools may take
_LISTED_WITHIN_SHARE: Final = 0.8
# a server that is down would otherwise cost every turn that time
ASKED_AGAIN_AFTER: Final = 15.0
_KEPT_AT_MOST: Final = 256
_KEPT_BYTES: Final = 16_000_000

_OFFERED_AT_MOST: Final = 128  # a vendor takes no more
_NAME_AT_MOST: Final = 64
_TOOL_AT_MOST: Final = 128
_DESCRIPTION_AT_MOST: Final = 1024
_SAID_AT_MOST: Final = 2000

_NOT_LISTED: Final = Fault(
    told="The MCP server does not list its tools in time.", ran="no", down=True
)
_RAN: Final = {
    "no": " The tool was not run.",
    "unknown": " Whether the tool was run is unknown.",
    "answered": "",
}


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A tool that a server has, under its own name there."""

    tool: str
    description: str
    parameters: dict[str, Any]
    size: int


@dataclass(frozen=True, kw_only=True)
class _Listing:
    """What was listed last, if anything was, and until when nobody asks again."""

    offers: tuple[Offer, ...] | None
    fault: Fault | None
    until: float

    @property
    def size(self) -> int:
        """About the bytes that it takes."""
        return sum(offer.size for offer in self.offers or ())


class Listings:
    """What servers offered, for a while: a turn does not wait for what it knows.

    What is known is offered on while its server is down.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, _Listing] = {}

    async def offers(
        self, key: str, ask: Callable[[], Awaitable[tuple[Offer, ...]]], *, within: float
    ) -> tuple[Offer, ...]:
        """The server's offers, asked for at most so many seconds; raises McpFailed if it has none.

        What it said within five minutes is not asked again.
        """
        kept = self._kept.get(key)
        if kept is None or kept.until <= self._clock():
            kept = await self._ask(kept, ask, within)
            self._kept.pop(key, None)
            self._kept[key] = kept
            self._forget()
        if kept.offers is not None:
            return kept.offers
        assert kept.fault is not None
        raise McpFailed(kept.fault)

    def _forget(self) -> None:
        """Let the listings go that were asked for longest ago, where there are too many."""
        size = sum(listing.size for listing in self._kept.values())
        while len(self._kept) > _KEPT_AT_MOST or (size > _KEPT_BYTES and len(self._kept) > 1):
            size -= self._kept.pop(next(iter(self._kept))).size

    async def _ask(
        self,
        kept: _Listing | None,
        ask: Callable[[], Awaitable[tuple[Offer, ...]]],
        within: float,
    ) -> _Listing:
        try:
            async with asyncio.timeout(within):
                offers = await ask()
        except TimeoutError:
            fault = _NOT_LISTED
        except McpFailed as exc:
            fault = exc.fault
        else:
            return _Listing(offers=offers, fault=None, until=self._clock() + FRESH)
        _log.warning(
            "an MCP server does not list its tools",
            extra={"action": "mcp_not_listed", "reason": fault.told},
        )
        known = kept.offers if kept is not None and fault.down else None
        return _Listing(offers=known, fault=fault, until=self._clock() + ASKED_AGAIN_AFTER)


_LISTINGS: Final = Listings()


async def mcp_tools(
    definition: "McpTool", *, tenant_id: str, deps: "ToolDeps", listings: Listings = _LISTINGS
) -> list[Tool]:
    """The server's tools that the definition lets through; raises ToolFailed if none are known."""
    headers = await fill_headers(definition.headers, tenant_id=tenant_id, secret=deps.secret)
    try:
        deps.guard.check_url(definition.url)
    except Refused as exc:
        raise ToolFailed(str(exc)) from exc
    server = McpServer(Address(url=definition.url, headers=headers, guard=deps.guard))
    deps.closing.push_async_callback(server.close)
    timeout = definition.timeout or deps.settings.tool_timeout

    async def ask() -> tuple[Offer, ...]:
        return _offers(await server.list_tools(), definition)

    key = json.dumps([tenant_id, definition.url, sorted(headers.items()), definition.tools])
    try:
        offers = await listings.offers(
            # a digest, so that no secret is kept for the sake of a listing
            hashlib.sha256(key.encode()).hexdigest(),
            ask,
            within=min(LISTED_WITHIN, timeout * _LISTED_WITHIN_SHARE),
        )
    except McpFailed as exc:
        raise ToolFailed(exc.fault.told) from exc
    mask = deps.masking.mask
    return [
        Tool(
            spec=ToolSpec(
                name=offered_name(definition.name, offer.tool),
                # masked before it is cut: half a secret would not be known for one
                description=beginning(mask(offer.description), limit=_DESCRIPTION_AT_MOST),
                parameters=offer.parameters,
            ),
            run=_runner(
                server, offer.tool, mask, repeatable=definition.read_only or definition.idempotent
            ),
            approval=definition.approval,
            read_only=definition.read_only,
            idempotent=definition.idempotent,
            timeout=timeout,
        )
        for offer in offers
    ]


def _offers(listed: Sequence[dict[str, Any]], definition: "McpTool") -> tuple[Offer, ...]:
    """Those of the listed tools that are to be offered and can be, each name once."""
    offers: dict[str, Offer] = {}
    for raw in listed:
        tool = raw.get("name")
        if not isinstance(tool, str) or (
            definition.tools is not None and tool not in definition.tools
        ):
            continue
        if fault := _fault_in(tool, raw.get("inputSchema")):
            _leave_out(definition, tool, fault)
        elif tool not in offers:
            schema, description = raw["inputSchema"], _description(raw, tool)
            size = len(description) + len(json.dumps(schema))
            offers[tool] = Offer(tool=tool, description=description, parameters=schema, size=size)
    for tool in list(offers)[_OFFERED_AT_MOST:]:
        _leave_out(definition, tool, f"only {_OFFERED_AT_MOST} tools of a server are offered")
        del offers[tool]
    known = {raw.get("name") for raw in listed}
    for tool in definition.tools or ():
        if tool not in known:
            _leave_out(definition, tool, "the server does not have it")
    return tuple(offers.values())


def _fault_in(tool: str, schema: Any) -> str | None:
    if not tool.strip() or len(tool) > _TOOL_AT_MOST or not is_storable(tool):
        return f"its name must have 1 to {_TOOL_AT_MOST} characters"
    if not isinstance(schema, dict):
        return "its schema is no object"
    # what is wrong with it would quote it
    return "its schema is none that models are offered" if schema_fault(schema) else None


def _leave_out(definition: "McpTool", tool: str, reason: str) -> None:
    _log.warning(
        "a tool of an MCP server is left out",
        extra={
            "action": "mcp_tool_left_out",
            "server": definition.name,
            "tool": beginning(tool, limit=_TOOL_AT_MOST),
            "reason": reason,
        },
    )


def _description(raw: dict[str, Any], tool: str) -> str:
    texts = (raw.get("description"), raw.get("title"), tool)
    return clean(next(text for text in texts if isinstance(text, str) and text.strip()).strip())


def offered_name(prefix: str, tool: str) -> str:
    """What the tool is called before a model: `<prefix>__<tool>`, in characters that vendors take.

    One that had other characters, or is too long, ends in a digest of the whole. So a name means
    the same tool whatever else the server offers by the time that a call is approved.
    """
    whole = f"{prefix}__{tool}"
    name = re.sub(r"[^A-Za-z0-9_-]", "_", whole)
    if name == whole and len(name) <= _NAME_AT_MOST:
        return name
    mark = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{name[: _NAME_AT_MOST - len(mark) - 1]}_{mark}"


def _runner(server: McpServer, tool: str, mask: Callable[[str], str], *, repeatable: bool) -> Run:
    async def run(arguments: dict[str, Any], context: ToolContext) -> str:
        try:
            result = await server.call(tool, arguments, repeatable=repeatable)
        except McpFailed as exc:
            told = exc.fault.told + _RAN[exc.fault.ran]
            said = beginning(mask(clean(exc.fault.said)), limit=_SAID_AT_MOST)
            raise ToolFailed(f"{told}\n{said}" if said else told) from exc
        text = result_text(result)
        if result.is_error:
            raise ToolFailed(text)
        return text

    return run


def result_text(result: "CallToolResult") -> str:
    """A result as a model reads it: its texts, else its structure, and a word on what is left out.

    What a server embeds as a text is a text; an image, a sound or a file is only named.
    """
    texts, left_out = [], []
    for block in result.content:
        if block.type == "text":
            texts.append(block.text)
        elif block.type == "resource_link":
            texts.append(f"[link to {block.name}: {block.uri}]")
        elif block.type == "resource" and hasattr(block.resource, "text"):
            texts.append(block.resource.text)
        else:
            what = block.resource if block.type == "resource" else block
            left_out.append(f"[{block.type} left out: {what.mime_type or 'of no known type'}]")
    if not any(texts) and result.structured_content is not None:
        structure = json.dumps(result.structured_content, ensure_ascii=False)
        texts = [structure]
    return clean("\n".join([*filter(None, texts), *left_out])) or "[the tool returned nothing]"
