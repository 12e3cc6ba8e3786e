"""Tools that are HTTP requests: the agent's definition is the template, the arguments fill it.

Every address on the way is checked, the first one and each redirect's, and what an entry's headers
hold goes to the origin that the entry names and to no other. An answer is read as far as it is of
use; how long all of it may take is the toolbox's to say.
"""

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, urldefrag, urljoin

from chalicelib.outbound import Refused, read_url, refusal
from chalicelib.providers.base import ToolSpec
from chalicelib.tools.base import Tool, ToolContext, ToolFailed
from chalicelib.tools.headers import fill_headers
from chalicelib.tools.http_answer import Answer, failure
from chalicelib.tools.templates import fill_body, fill_url

if TYPE_CHECKING:
    import aiohttp

    from chalicelib.tools.definitions import HttpTool
    from chalicelib.tools.toolbox import ToolDeps

_REDIRECTS_AT_MOST: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_ANSWER_BYTES: Final = 1 << 20
_FAILURE_BYTES: Final = 64 << 10
_WITH_BODY: Final = frozenset({"POST", "PUT", "PATCH"})
_USER_AGENT: Final = "Palimpsest"
_GOES_ON: Final = f"[The answer goes on; only its first {_ANSWER_BYTES} bytes were read.]"


async def http_tools(definition: "HttpTool", /, *, tenant_id: str, deps: "ToolDeps") -> list[Tool]:
    """The one tool of this entry; nothing is asked before it is called."""
    caller = _Caller(definition, tenant_id=tenant_id, deps=deps)
    deps.closing.push_async_callback(caller.close)
    return [
        Tool(
            spec=ToolSpec(
                name=definition.name,
                description=definition.description or f"Calls {definition.name}.",
                parameters=definition.parameters,
            ),
            run=caller.run,
            approval=definition.approval,
            read_only=definition.read_only,
            idempotent=definition.idempotent,
            timeout=definition.timeout or deps.settings.tool_timeout,
        )
    ]


class _Caller:
    """Makes the requests of one entry, over connections that are kept between its calls."""

    def __init__(self, definition: "HttpTool", *, tenant_id: str, deps: "ToolDeps") -> None:
        self._definition, self._tenant_id, self._deps = definition, tenant_id, deps
        self._session: aiohttp.ClientSession | None = None

    async def run(self, arguments: dict[str, Any], context: ToolContext) -> str:
        """The answer's text; raises ToolFailed for one that is no success."""
        method = self._definition.method
        url = fill_url(self._definition.url, arguments, others=method not in _WITH_BODY)
        headers = await fill_headers(
            self._definition.headers, tenant_id=self._tenant_id, secret=self._deps.secret
        )
        answer = await self._ask(method, url, headers, self._body(arguments))
        text = answer.text()
        # before anything is cut: a secret's beginning would not be known for one
        text = text and self._deps.masking.mask(text, cut=answer.cut)
        if not 200 <= answer.status < 300:
            raise ToolFailed(failure(answer, text=text))
        if not text:
            return answer.note()
        if answer.cut:
            return f"{text}\n\n{_GOES_ON}"
        return text

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _body(self, arguments: dict[str, Any]) -> bytes | None:
        template = self._definition.body
        if self._definition.method not in _WITH_BODY:
            return None
        value = arguments if template is None else fill_body(template, arguments)
        # a template that is one place, and its argument was left out
        if value is None:
            return None
        return json.dumps(value, ensure_ascii=False).encode()

    async def _ask(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None
    ) -> Answer:
        import aiohttp

        try:
            return await self._follow(method, url, headers, body)
        except Refused as exc:
            raise ToolFailed(str(exc)) from exc
        except aiohttp.ClientConnectorDNSError as exc:
            # in the words of a refusal: which private names exist is nobody's business
            raise ToolFailed(refusal(exc.host)) from exc
        except aiohttp.ClientConnectorCertificateError as exc:
            raise ToolFailed("The server's TLS certificate is not valid.") from exc
        except aiohttp.ClientConnectorError as exc:
            raise ToolFailed("The server could not be reached.") from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise ToolFailed(
                "The server broke off the connection; whether the call had an effect is unknown."
            ) from exc

    async def _follow(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None
    ) -> Answer:
        for _ in range(_REDIRECTS_AT_MOST + 1):
            self._deps.guard.check_url(url)
            async with self._request(method, url, headers, body) as response:
                location = response.headers.get("Location")
                if response.status not in _REDIRECTS or not location:
                    return await _read(response)
                status = response.status
            there = _join(url, location)
            if read_url(there) != read_url(url):
                headers = {}
            if status == 303 or (status in {301, 302} and method == "POST"):
                method, body = "GET", None
            url = there
        raise ToolFailed(f"The server redirected the call more than {_REDIRECTS_AT_MOST} times.")

    def _request(
        self, method: str, url: str, headers: dict[str, str], body: bytes | None
    ) -> "aiohttp.client._RequestContextManager":
        from yarl import URL

        names = {name.lower() for name in headers}
        sent = dict(headers)
        if body is not None and "content-type" not in names:
            sent["Content-Type"] = "application/json"
        if "user-agent" not in names:
            sent["User-Agent"] = _USER_AGENT
        return self._http().request(
            method, URL(url, encoded=True), headers=sent, data=body, allow_redirects=False
        )

    def _http(self) -> "aiohttp.ClientSession":
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=self._deps.guard.connector(),
                timeout=aiohttp.ClientTimeout(total=None),
                middlewares=(_once,),
                # what one call's server sets is not for the next call's
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def _once(
    request: "aiohttp.ClientRequest", send: "aiohttp.ClientHandlerType"
) -> "aiohttp.ClientResponse":
    """Send a request a single time.

    aiohttp sends a GET, PUT or DELETE anew when the connection breaks before an answer has begun,
    though the server may have carried it out by then.
    """
    import aiohttp

    try:
        return await send(request)
    except aiohttp.ClientConnectorError:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as exc:
        raise aiohttp.ClientError("broken off") from exc


async def _read(response: "aiohttp.ClientResponse") -> Answer:
    """The answer with as much of its body as is of use; more is not waited for."""
    import aiohttp

    limit = _ANSWER_BYTES if response.ok else _FAILURE_BYTES
    raw = bytearray()
    # the status of a failure says enough where its body does not come
    with suppress(*(() if response.ok else (aiohttp.ClientError,))):
        while len(raw) <= limit and (piece := await response.content.readany()):
            raw += piece
    return Answer(
        status=response.status,
        content_type=response.headers.get("Content-Type", ""),
        body=bytes(raw[:limit]),
        cut=len(raw) > limit,
    )


def _join(url: str, location: str) -> str:
    """Where a redirect leads, as a URL that is all ASCII and without a fragment."""
    # some servers send it in UTF-8 and with blanks
    escaped = quote(
        location.strip().encode("utf-8", "surrogateescape"), safe="%:/?#[]@!$&'()*+,;=~\\"
    )
    try:
        return urldefrag(urljoin(url, escaped)).url
    except ValueError:
        raise Refused("The server's redirect leads to a URL that cannot be read.") from None
