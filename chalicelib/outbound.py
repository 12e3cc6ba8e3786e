"""What may be called from here on somebody else's behalf: tools, and tenants' own providers.

A tenant names a URL, a server redirects, a name resolves: none of them may reach what only this
machine can reach, such as a metadata service or a neighbour in the VPC. So a URL is read strictly
(what two parsers could read in two ways is refused, odd spellings of addresses among it), every
address that a name resolves to must be public, and the connector connects to what was checked,
without asking again. The operator's `tool_private_hosts` are let through.

Private is whatever is not known to be public: IPv6 is open by list, IPv4 shut by list.
"""

import asyncio
import ipaddress
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from chalicelib.config import SettingsError

if TYPE_CHECKING:
    import aiohttp

Lookup = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a name, for a port. Raises OSError where there are none."""

_PORTS: Final = {"http": 80, "https": 443}

_LABEL: Final = r"[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
_AUTHORITY: Final = re.compile(r"(\[[^\[\]]*\]|[^\[\]:]*)(?::([0-9]{1,5}))?")
# a last part that a resolver would read as a number makes the whole an IPv4 address
_NUMERIC: Final = re.compile(r"(?:.*\.)?(?:[0-9]+|0[xX][0-9A-Fa-f]*)")
# urlsplit drops some of these and browsers take \ for /
_UNREADABLE: Final = re.compile(r"[\x00-\x20\x7f-\xa0\\\ud800-\udfff]")

_NOT_PUBLIC_4: Final = tuple(
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier NAT, and one cloud's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # one cloud's host agent, though its number is public
        "169.254.0.0/16",  # link-local: metadata of instances, tasks and functions
        "172.16.0.0/12",
        "192.0.0.0/24",  # protocol assignments, and one cloud's metadata
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
)
_GLOBAL_6: Final = ipaddress.IPv6Network("2000::/3")
_NOT_PUBLIC_6: Final = tuple(
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments, Teredo among them, which holds an IPv4 address
        "2001:db8::/32",  # documentation
        "2002::/16",  # 6to4, which holds an IPv4 address
        "3fff::/20",  # documentation
    )
)
# how an IPv6-only network reaches an IPv4 address, which is then the one that counts
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")


class Refused(Exception):
    """A call may not go there. The text can be shown: it tells no address that a name has."""


@dataclass(frozen=True, kw_only=True)
class Target:
    """Where a URL leads. `host` is in lower case and without brackets."""

    scheme: str
    host: str
    port: int

    @property
    def address(self) -> "ipaddress.IPv4Address | ipaddress.IPv6Address | None":
        """The host where it is an address and no name."""
        return _address(self.host)


def read_url(url: str) -> Target:
    """Where this URL leads, wherever that is; raises Refused for one that is oddly written."""
    if _UNREADABLE.search(url):
        raise Refused("The URL holds spaces, control characters or backslashes.")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise Refused("The URL cannot be read.") from None
    if parts.scheme not in _PORTS:
        raise Refused("The URL must begin with https://.")
    if "@" in parts.netloc:
        raise Refused("The URL must not hold a user name or password.")
    if not parts.netloc:
        raise Refused("The URL must name a host.")
    if not parts.netloc.isascii():
        raise Refused("The URL must name its host in ASCII (an international name as xn--…).")
    found = _AUTHORITY.fullmatch(parts.netloc)
    if found is None:
        raise Refused("The URL's host or port cannot be read.")
    port = int(found[2]) if found[2] else _PORTS[parts.scheme]
    if not 0 < port < 65536:
        raise Refused("The URL's port must be 1 to 65535.")
    return Target(scheme=parts.scheme, host=_host(found[1]), port=port)


def _host(text: str) -> str:
    """The host as it is compared; raises Refused unless it has one meaning only."""
    if text.startswith("["):
        try:
            address = ipaddress.IPv6Address(text[1:-1])
        except ValueError:
            raise Refused("The URL's IPv6 address cannot be read.") from None
        if address.scope_id is not None:
            raise Refused("The URL's IPv6 address must not hold a zone.")
        return address.compressed
    if _NUMERIC.fullmatch(text):
        try:
            return str(ipaddress.IPv4Address(text))
        except ValueError:
            raise Refused("The URL's IPv4 address must be four decimal numbers.") from None
    if len(text) > 253 or not _NAME.fullmatch(text):
        raise Refused("The URL's host is no host name.")
    return text.lower()


def _address(text: str) -> "ipaddress.IPv4Address | ipaddress.IPv6Address | None":
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def is_public(text: str) -> bool:
    """Whether this is an address that anyone on the internet can reach; False for no address."""
    address = _address(text)
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return False
        if address in _NAT64:
            return is_public(str(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)))
        return address in _GLOBAL_6 and not any(address in net for net in _NOT_PUBLIC_6)
    return address is not None and not any(address in net for net in _NOT_PUBLIC_4)


async def look_up(host: str, port: int) -> list[str]:
    """The addresses that this machine's resolver gives, each once."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Guard:
    """Says where calls may go. `allowed` are `name` or `name:port`, an IPv6 address in brackets.

    Raises SettingsError for what is neither.
    """

    def __init__(self, allowed: Sequence[str], *, lookup: Lookup = look_up) -> None:
        self._allowed: set[tuple[str, int | None]] = set()
        for entry in allowed:
            found = _AUTHORITY.fullmatch(entry)
            try:
                host = _host(found[1] if found else "")
            except Refused:
                raise SettingsError(f"{entry!r} is no host that could be let through.") from None
            self._allowed.add((host, int(found[2]) if found and found[2] else None))
        self._lookup = lookup

    def allows(self, host: str, port: int) -> bool:
        """Whether the operator let this host through, private or not."""
        address = _address(host)
        host = host.lower() if address is None else address.compressed
        return (host, None) in self._allowed or (host, port) in self._allowed

    def check_url(self, url: str) -> None:
        """Raises Refused unless this URL may be called as far as its text tells."""
        target = read_url(url)
        if self.allows(target.host, target.port):
            return
        if target.scheme != "https":
            raise Refused("The URL must begin with https://.")
        if target.address is not None and not is_public(target.host):
            raise Refused(refusal(target.host))

    async def resolve(self, host: str, port: int) -> list[str]:
        """The host's addresses; raises Refused if any may not be called, OSError if none is known.

        Whoever connects uses these and does not ask again: the next answer may be another.
        """
        host = _host(f"[{host}]" if ":" in host else host)
        found = [host] if _address(host) is not None else await self._lookup(host, port)
        if not found:
            raise OSError("the name has no address")
        if not self.allows(host, port) and not all(map(is_public, found)):
            raise Refused(refusal(host))
        return found

    def connector(self) -> "aiohttp.TCPConnector":
        """For a client session: connections go to checked addresses only, else raise Refused.

        Made on a running loop. It takes any scheme: that is `check_url`'s to refuse. A session that
        follows redirects by itself would do so without `check_url`, and with its headers.
        """
        import aiohttp

        guard = self
        # private ones that an allowed name resolved to
        let_through: set[tuple[str, int]] = set()

        class Resolver(aiohttp.abc.AbstractResolver):
            async def resolve(
                self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
            ) -> list[aiohttp.abc.ResolveResult]:
                addresses = await guard.resolve(host, port)
                if guard.allows(host, port):
                    let_through.update((address, port) for address in addresses)
                return [_result(host, address, port) for address in addresses]

            async def close(self) -> None:
                """Nothing is held open."""

        def open_socket(info: tuple[Any, ...]) -> socket.socket:
            # an address in the URL passes by the resolver
            family, kind, protocol, _, (address, port, *_) = info
            allowed = guard.allows(address, port) or (address, port) in let_through
            if not allowed and not is_public(address):
                raise Refused(refusal(address))
            return socket.socket(family, kind, protocol)

        return aiohttp.TCPConnector(
            limit=0, keepalive_timeout=30, resolver=Resolver(), socket_factory=open_socket
        )


def refusal(host: str) -> str:
    """What is told of a host that has no public address, be it private or unknown."""
    return f"{host} has no public address, and only such may be called."


def _result(host: str, address: str, port: int) -> "aiohttp.abc.ResolveResult":
    return {
        "hostname": host,
        "host": address,
        "port": port,
        "family": socket.AF_INET6 if ":" in address else socket.AF_INET,
        "proto": 0,
        "flags": socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
    }
