"""The HTTP under every wire: one POST, its failures as ours, and a connection that is kept.

Nothing here knows a vendor but by the kinds that its errors are named with. How long an answer
may take is the chain's to say; only reaching the provider is timed here.
"""

import asyncio
import hashlib
import io
import logging
import math
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

from chalicelib.config import settings
from chalicelib.errors import (
    ProviderDenied,
    ProviderError,
    ProviderRejected,
    ProviderUnavailable,
)
from chalicelib.outbound import Guard, Refused
from chalicelib.providers.base import ProviderOptions

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)

# the request is at fault
_REJECTED: Final = frozenset({400, 413, 422})
# the key, the model or the address is; a redirect is not followed, the key would go with it
_DENIED: Final = frozenset({*range(300, 400), *range(401, 408), 410, 411, 415, 426, 451})

# the same by the vendors' names, in lower case and without _ and -
_REJECTED_KINDS: Final = frozenset(
    {
        "badrequest",
        "badrequesterror",
        "contextlengthexceeded",
        "exceedcontextsizeerror",
        "invalidprompt",
        "invalidrequest",
        "invalidrequesterror",
        "requesttoolarge",
        "unprocessableentityerror",
        "validationexception",
    }
)
_DENIED_KINDS: Final = frozenset(
    {
        "accessdenied",
        "accessdeniedexception",
        "accountdeactivated",
        "authenticationerror",
        "billingerror",
        "billinghardlimitreached",
        "billingnotactive",
        "expiredtoken",
        "expiredtokenexception",
        "forbidden",
        "insufficientquota",
        "invalidapikey",
        "invalidauthentication",
        "invalidsignatureexception",
        "missingauthenticationtokenexception",
        "modeldecommissioned",
        "modelnotfound",
        "notfounderror",
        "permissiondenied",
        "permissionerror",
        "resourcenotfoundexception",
        "unauthorized",
        "unrecognizedclientexception",
    }
)

_NO_HEADER: Final = re.compile(r"[\x00-\x1f\x7f]")
_STATUS: Final = re.compile(r"[3-5][0-9]{2}", re.ASCII)

# how long a connection is given to end after an answer that is whole, so as to be used again
_LINGER: Final = 0.5
# an error's body tells no more than its kind
_REFUSAL_BYTES: Final = 16_384
_REFUSAL_SECONDS: Final = 1.0
# the longest way there and back of words that cross
_CROSSED: Final = 2.0
_ANSWER_BYTES: Final = 64 << 20
_WAIT_AT_MOST: Final = 86_400.0


def idempotency_key(name: str, model: str, body: bytes) -> str:
    """The same for the same request, in any process: a vendor that knows it answers twice alike."""
    return hashlib.sha256(f"{name}|{model}|".encode() + body).hexdigest()


def failure(
    told: str, *, status: int | None = None, kind: str = "", retry_after: str | None = None
) -> ProviderError:
    """What a provider's refusal means; `told` (`provider:model`) is the sentence's subject.

    Without `status` the error came inside an answer, and `kind` alone decides: a vendor's name for
    it, safe to show, or a status as text. What nobody knows may go better next time.
    """
    what = "reported an error" if status is None else f"answered {status}"
    message = f"{told} {what}" + (f" ({kind})" if kind and kind != str(status) else "") + "."
    plain = _plain(kind)
    if status is None:
        status = int(kind) if _STATUS.fullmatch(kind) else 0
        rejected = status in _REJECTED or plain in _REJECTED_KINDS
    else:
        rejected = status in _REJECTED
    # a server's own trouble stays that, whatever it is named
    if status in _DENIED or (status < 500 and plain in _DENIED_KINDS):
        return ProviderDenied(message)
    if rejected:
        return ProviderRejected(message)
    return ProviderUnavailable(message, wait=_seconds(retry_after))


def is_known_kind(kind: str) -> bool:
    """Whether `failure` judges an error by this name."""
    return _plain(kind) in _REJECTED_KINDS | _DENIED_KINDS or bool(_STATUS.fullmatch(kind))


def _plain(kind: str) -> str:
    return kind.lower().replace("_", "").replace("-", "")


def _seconds(retry_after: str | None) -> float | None:
    text = (retry_after or "").strip()
    try:
        seconds = float(text)
    except ValueError:
        try:
            at = parsedate_to_datetime(text)
        except ValueError:
            return None
        # without a zone it is UTC, as every HTTP date is
        at = at if at.tzinfo else at.replace(tzinfo=UTC)
        seconds = max(0.0, (at - datetime.now(UTC)).total_seconds())
    if not math.isfinite(seconds) or seconds < 0:
        return None
    return min(seconds, _WAIT_AT_MOST)


class HttpWire:
    """POSTs to one address of one provider, over connections that are kept.

    `headers` are the vendor's own; `kind_of` reads the vendor's name for an error, safe to show,
    from an error's body, and may raise nothing.
    """

    def __init__(
        self,
        options: ProviderOptions,
        *,
        path: str,
        headers: Mapping[str, str],
        kind_of: Callable[[bytes], str],
    ) -> None:
        self._options = options
        self._url = options.base_url.rstrip("/") + path
        self._headers = dict(headers)
        self._kind_of = kind_of
        self._told = f"{options.name}:{options.model}"
        self._session: aiohttp.ClientSession | None = None

    @asynccontextmanager
    async def post(self, body: bytes, *, accept: str) -> AsyncIterator["aiohttp.ClientResponse"]:
        """The answer to this JSON, if it is a 200; raises ProviderError for any other.

        What the HTTP library raises inside of the block becomes ProviderUnavailable too. A block
        that ends well leaves the connection to the next call, if the server ends its answer soon.
        """
        import aiohttp  # 190 ms of import, paid by the functions that call a model

        if any(_NO_HEADER.search(value) for value in self._headers.values()):
            raise ProviderDenied(f"{self._told} was not called. Its key holds a control character.")
        headers = {
            **self._headers,
            "Content-Type": "application/json",
            "Accept": accept,
            "Idempotency-Key": idempotency_key(self._options.name, self._options.model, body),
        }
        try:
            async with await self._send(body, headers) as response:
                if response.status != 200:
                    raise await self._refusal(response)
                yield response
                await _let_end(response)
        except Refused as exc:
            raise ProviderDenied(f"{self._told} was not called. {exc}") from exc
        except (aiohttp.ClientError, TimeoutError, OSError) as exc:
            reason = "timed out" if isinstance(exc, TimeoutError) else "broke the connection"
            again = not isinstance(exc, TimeoutError)
            raise ProviderUnavailable(f"{self._told} {reason}.", again=again) from exc

    def pieces(self, response: "aiohttp.ClientResponse") -> AsyncIterator[bytes]:
        """The answer's bytes as they come; raises ProviderUnavailable past 64 MB."""
        return _Pieces(response, self._told)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def _send(self, body: bytes, headers: dict[str, str]) -> "aiohttp.ClientResponse":
        import aiohttp

        while True:
            sent, began = _Sent(), time.monotonic()
            # a body over 1 MB in one write would hold up every other stream of the process
            data = body if len(body) <= 1 << 20 else io.BytesIO(body)
            try:
                return await self._http().post(
                    self._url,
                    data=data,
                    headers=headers,
                    allow_redirects=False,
                    trace_request_ctx=sent,
                )
            except aiohttp.ClientConnectionError:
                # the server had ended a kept connection, and its word crossed ours
                if not sent.over_kept or time.monotonic() - began > _CROSSED:
                    raise

    def _http(self) -> "aiohttp.ClientSession":
        if self._session is None:
            import aiohttp

            trace = aiohttp.TraceConfig()
            trace.on_connection_reuseconn.append(_note_kept)
            self._session = aiohttp.ClientSession(
                connector=self._connector(),
                trace_configs=[trace],
                timeout=aiohttp.ClientTimeout(total=None, connect=self._options.connect_timeout),
                read_bufsize=1 << 18,
            )
        return self._session

    def _connector(self) -> "aiohttp.TCPConnector":
        import aiohttp

        if not self._options.guarded:
            return aiohttp.TCPConnector(limit=0, keepalive_timeout=30)
        guard = Guard(settings().tool_private_hosts)
        guard.check_url(self._url)
        return guard.connector()

    async def _refusal(self, response: "aiohttp.ClientResponse") -> ProviderError:
        import aiohttp

        raw = b""
        # the status says enough where the body does not come
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with asyncio.timeout(_REFUSAL_SECONDS):
                while len(raw) < _REFUSAL_BYTES and (piece := await response.content.readany()):
                    raw += piece
        raw = raw[:_REFUSAL_BYTES]
        _log.debug(
            "provider refused",
            extra={"action": "provider_refused", "body": raw.decode("utf-8", "replace")},
        )
        return failure(
            self._told,
            status=response.status,
            kind=self._kind_of(raw),
            retry_after=response.headers.get("Retry-After"),
        )


@dataclass
class _Sent:
    over_kept: bool = False  # and not over a connection of its own


async def _note_kept(_: object, context: Any, __: object) -> None:
    context.trace_request_ctx.over_kept = True


class _Pieces:
    """An iterator and no generator: one that is left early needs no closing."""

    def __init__(self, response: "aiohttp.ClientResponse", told: str) -> None:
        self._content, self._told = response.content, told
        self._left = _ANSWER_BYTES

    def __aiter__(self) -> "_Pieces":
        return self

    async def __anext__(self) -> bytes:
        piece = await self._content.readany()
        if not piece:
            raise StopAsyncIteration
        self._left -= len(piece)
        if self._left < 0:
            raise ProviderUnavailable(f"{self._told} sent more than an answer holds.")
        return piece


async def _let_end(response: "aiohttp.ClientResponse") -> None:
    import aiohttp

    # the answer is told: neither a reset nor a server that leaves the line open can spoil it
    with suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with asyncio.timeout(_LINGER):
            while await response.content.readany():
                pass
