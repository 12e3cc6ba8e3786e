"""The endpoint of one of AWS's microVMs: where it is, who may call it, and one request to it.

A VM answers at a host name of its own under `on.aws`. AWS's proxy there wants a token that is
minted for the VM and a port, and resumes a suspended VM before it passes the request on. What
comes back was written in a VM that runs anybody's code, and is read as such.
"""

import json
import re
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from chalicelib.isolation.aws_calls import Calls
from chalicelib.isolation.base import AgentRefused, MachineUnavailable

if TYPE_CHECKING:
    import aiohttp

AGENT_PORT: Final = 8080
"""Where the agent listens in the VM; AWS's proxy forwards to it unless told otherwise."""

# names that AWS alone can point at an address; so none that is private has to be looked for
_HOST: Final = re.compile(r"[a-z0-9-]{1,63}\.lambda-microvm\.[a-z0-9-]{1,32}\.on\.aws")
_TOKEN_HEADER: Final = "X-aws-proxy-auth"  # noqa: S105
_TOKEN_MINUTES: Final = 15
_TOKEN_SPARE: Final = 60.0
_ANSWER_BYTES: Final = 16 << 20
_CONNECT_SECONDS: Final = 10.0
# a NAT gateway forgets a connection after 350
_KEEPALIVE_SECONDS: Final = 60
# statuses that are the proxy's own and never the agent's
_PROXYS: Final = frozenset({401, 403, 429})


def address(endpoint: str) -> str:
    """The base URL of the endpoint that AWS names; MachineUnavailable if it is not AWS's."""
    # AWS answers with the bare host name
    url = endpoint if "://" in endpoint else f"https://{endpoint}"
    parts = urlsplit(url)
    host = parts.hostname or ""
    if parts.scheme != "https" or parts.netloc != host or not _HOST.fullmatch(host):
        raise MachineUnavailable("The microVM has an endpoint that is not one of AWS's.")
    return f"https://{host}"


class Tokens:
    """Tokens for the agent's port, kept until shortly before they expire."""

    def __init__(self, calls: Calls, *, now: Callable[[], float] = time.time) -> None:
        self._calls = calls
        self._now = now
        self._kept: dict[str, tuple[str, float]] = {}

    async def take(self, machine_id: str) -> str:
        """One that is good for a minute at least."""
        now = self._now()
        kept = self._kept.get(machine_id)
        if kept is not None and now < kept[1]:
            return kept[0]
        made = await self._calls.call(
            "create_microvm_auth_token",
            microvmIdentifier=machine_id,
            expirationInMinutes=_TOKEN_MINUTES,
            allowedPorts=[{"port": AGENT_PORT}],
        )
        token = str(made["authToken"].get(_TOKEN_HEADER, ""))
        if not token:
            raise MachineUnavailable("The microVM cannot be called: AWS gave no token for it.")
        self._kept = {id: entry for id, entry in self._kept.items() if now < entry[1]}
        self._kept[machine_id] = (token, now + 60 * _TOKEN_MINUTES - _TOKEN_SPARE)
        return token

    def forget(self, machine_id: str) -> None:
        """Mint anew the next time."""
        self._kept.pop(machine_id, None)


class Unreached(Exception):
    """No whole answer came. `sent` says whether the request may have."""

    def __init__(self, *, sent: bool) -> None:
        super().__init__("sent" if sent else "not sent")
        self.sent = sent


@dataclass(frozen=True, kw_only=True)
class Reply:
    """What came back, from the agent or from AWS's proxy before it."""

    status: int
    body: bytes

    @property
    def kept_out(self) -> bool:
        """Whether the proxy did not let the request through for its token."""
        return self.status in (401, 403)

    def read(self) -> dict[str, Any] | None:
        """The agent's answer, None if this is not of the agent; raises AgentRefused.

        The statuses 401, 403, 429 and those from 500 on are never the agent's.
        """
        if self.status in _PROXYS or self.status >= 500:
            return None
        answer: Any = None
        with suppress(ValueError, RecursionError):
            answer = json.loads(self.body)
        if not isinstance(answer, dict):
            return None
        if self.status == 200:
            return answer
        told = answer.get("error")
        if self.status >= 400 and isinstance(told, str) and "code" in answer:
            raise AgentRefused(told)
        return None


def kept_alive(where: Any) -> socket.socket:
    """A socket that is not forgotten on the way while code runs for minutes and says nothing."""
    made = socket.socket(family=where[0], type=where[1], proto=where[2])
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if hasattr(socket, "TCP_KEEPIDLE"):
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEPALIVE_SECONDS)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEPALIVE_SECONDS)
    return made


async def send(
    method: str,
    url: str,
    *,
    token: str,
    body: dict[str, Any] | None = None,
    connect: "Callable[[], aiohttp.BaseConnector] | None" = None,
) -> Reply:
    """The reply; Unreached where there is none. Takes as long as the caller lets it.

    No connection is kept: an idle one does not outlive a suspension, nor a frozen function.
    """
    import aiohttp

    async with aiohttp.ClientSession(
        connector=connect() if connect else aiohttp.TCPConnector(socket_factory=kept_alive),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS),
        auto_decompress=False,
        headers={
            "Accept-Encoding": "identity",
            _TOKEN_HEADER: token,
            "X-aws-proxy-port": str(AGENT_PORT),
        },
    ) as http:
        try:
            async with http.request(method, url, json=body, allow_redirects=False) as response:
                raw = bytearray()
                async for piece in response.content.iter_chunked(1 << 16):
                    raw += piece
                    if len(raw) > _ANSWER_BYTES:
                        raise MachineUnavailable("The microVM answered with too much.")
                return Reply(status=response.status, body=bytes(raw))
        except aiohttp.ClientConnectorError as exc:
            raise Unreached(sent=False) from exc
        except (aiohttp.ClientError, OSError) as exc:
            raise Unreached(sent=True) from exc
