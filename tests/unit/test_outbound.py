"""Where calls on a tenant's behalf may go: odd addresses, changing names, what is connected to."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import aiohttp
import pytest

from chalicelib.config import SettingsError
from chalicelib.outbound import Guard, Refused, is_public, look_up, read_url
from tests.fakes.tool_server import ToolServer, redirect

PUBLIC = "93.184.215.14"


def names(**answers: list[list[str]]) -> Callable[[str, int], Awaitable[list[str]]]:
    """A resolver that gives each name's answers in turn, the last one again; others are unknown."""
    asked = {name.replace("_", "."): list(lists) for name, lists in answers.items()}

    async def lookup(host: str, port: int) -> list[str]:
        lists = asked.get(host)
        if not lists:
            raise OSError("no such name")
        return lists.pop(0) if len(lists) > 1 else lists[0]

    return lookup


@pytest.fixture
def server() -> Iterator[ToolServer]:
    """Something on loopback that must not be reached unless it is let through."""
    with ToolServer() as made:
        yield made


NOT_PUBLIC = [
    "0.0.0.0",
    "0.1.2.3",
    "10.0.0.1",
    "100.64.0.1",
    "100.127.255.255",
    "127.0.0.1",
    "127.255.255.254",
    "168.63.129.16",
    "169.254.169.254",
    "169.254.170.2",
    "169.254.170.23",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.192",
    "192.0.2.1",
    "192.88.99.1",
    "192.168.1.1",
    "198.18.0.1",
    "198.51.100.7",
    "203.0.113.9",
    "224.0.0.1",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::ffff:127.0.0.1",
    "::ffff:8.8.8.8",
    "::ffff:0:169.254.169.254",
    "::169.254.169.254",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b::10.0.0.1",
    "64:ff9b:1::8.8.8.8",
    "100::1",
    "2001::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:808:808::1",
    "3fff::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fec0::1",
    "ff02::1",
]


@pytest.mark.parametrize("address", NOT_PUBLIC)
def test_an_address_that_only_this_machine_can_reach_is_refused(address: str) -> None:
    """Lost if red: the metadata service's keys, or a neighbour in the VPC, to any tenant."""
    host = f"[{address}]" if ":" in address else address
    with pytest.raises(Refused):
        Guard([]).check_url(f"https://{host}/latest/meta-data/")
    assert not is_public(address)


@pytest.mark.parametrize(
    "address",
    [
        "8.8.8.8",
        "100.63.255.255",
        "100.128.0.1",
        "172.32.0.1",
        "198.20.0.1",
        "223.255.255.255",
        "2606:4700::1111",
        "2a00:1450:4001::5",
        pytest.param("64:ff9b::808:808", id="a-public-IPv4-address-seen-through-NAT64"),
    ],
)
def test_a_public_address_may_be_called(address: str) -> None:
    """Lost if red: tools on the internet."""
    host = f"[{address}]" if ":" in address else address
    Guard([]).check_url(f"https://{host}/v1?a=b")
    assert is_public(address)


@pytest.mark.parametrize("text", ["", "localhost", "fe80::1%eth0", "2606:4700::1111%1", "1.2.3"])
def test_what_is_no_plain_address_is_no_public_one(text: str) -> None:
    """Lost if red: a door for whatever spelling comes next."""
    assert not is_public(text)


@pytest.mark.parametrize(
    "url",
    [
        "http://2130706433/",
        "https://2130706433/",
        "https://0x7f000001/",
        "https://0x7f.0.0.1/",
        "https://0177.0.0.1/",
        "https://127.0.0.01/",
        "https://127.1/",
        "https://1.2.3/",
        "https://8.8.8.8./",
        "https://8.8.8.256/",
        "https://example.0x/",
        "https://localhost./",
        "https://example.com./",
        "https://１２７.０.０.１/",
        "https://①②⑦.0.0.1/",
        "https://loc\u00adalhost/",
        "https://127。0。0。1/",
        "https://münchen.example/",
        "https://[::1%25lo]/",
        "https://[fe80::1%eth0]/",
        "https://[1.2.3.4]/",
        "https://[::1/",
        "https://::1/",
        "https://[v1.a]/",
        "https://%31%32%37.0.0.1/",
        "https://user@example.com/",
        "https://user:password@example.com/",
        "https://example.com@169.254.169.254/",
        "https://example.com\\@169.254.169.254/",
        "https://example.com:443@10.0.0.1/",
        "https://exa mple.com/",
        "https://exam\nple.com/",
        "https://example.com/\r\nHost: other",
        "https://example.com/\x00",
        "https://example.com:0/",
        "https://example.com:65536/",
        "https://example.com:/",
        "https://example.com:80:80/",
        "https://example.com:8a/",
        "https://:443/",
        "https:///path",
        "https:example.com",
        "//example.com/",
        "example.com",
        "",
        "https://a..example.com/",
        "https://-a.example.com/",
        f"https://{'a' * 64}.com/",
        f"https://{'a.' * 127}com/",
        "file:///etc/passwd",
        "ftp://example.com/",
        "gopher://example.com/",
        "data:text/plain,hi",
        "javascript:alert(1)",
        "http://example.com/",
        "HTTP://example.com/",
    ],
)
def test_a_url_that_could_be_read_in_two_ways_is_refused(url: str) -> None:
    """Lost if red: the check of one place and the call of another."""
    with pytest.raises(Refused):
        Guard([]).check_url(url)


def test_a_plain_https_url_is_read_as_it_is_written() -> None:
    """Lost if red: ordinary tools, refused."""
    target = read_url("HTTPS://Api.Example-1.com:8443/a/../b?x=ü#y")
    assert (target.scheme, target.host, target.port) == ("https", "api.example-1.com", 8443)
    assert target.address is None
    assert read_url("https://xn--mnchen-3ya.example").port == 443
    assert read_url("http://[2606:4700::0:1111]/").host == "2606:4700::1111"


@pytest.mark.parametrize(
    ("allowed", "url", "passes"),
    [
        ("tools.internal", "http://tools.internal/a", True),
        ("tools.internal", "https://TOOLS.internal:9000/a", True),
        ("Tools.Internal", "http://tools.internal/", True),
        ("tools.internal:9000", "http://tools.internal:9000/a", True),
        ("tools.internal:9000", "http://tools.internal/a", False),
        ("tools.internal", "http://a.tools.internal/", False),
        ("127.0.0.1", "http://127.0.0.1:5000/", True),
        ("127.0.0.1:5000", "http://127.0.0.1:5000/", True),
        ("127.0.0.1:5000", "http://127.0.0.1:5001/", False),
        ("127.0.0.1:5000", "https://127.0.0.1:5001/", False),
        ("127.0.0.1", "http://127.1/", False),
        ("[::1]:5000", "http://[0:0::1]:5000/", True),
        ("tools.internal", "http://tools.internal@10.0.0.1/", False),
    ],
)
def test_only_the_hosts_that_the_operator_names_are_let_through(
    allowed: str, url: str, passes: bool
) -> None:
    """Lost if red: tools inside the operator's own network, or the rest of that network."""
    guard = Guard([allowed])
    if passes:
        guard.check_url(url)
    else:
        with pytest.raises(Refused):
            guard.check_url(url)


@pytest.mark.parametrize("entry", ["127.1", "a..b", "tools.internal.", ""])
def test_an_entry_that_names_no_host_is_told_to_the_operator(entry: str) -> None:
    """Lost if red: a host that is let through by a slip, or is not and nobody knows why."""
    with pytest.raises(SettingsError):
        Guard([entry])


@pytest.mark.parametrize(
    "addresses",
    [
        pytest.param(["127.0.0.1"], id="private"),
        pytest.param([PUBLIC, "10.0.0.1"], id="public-and-private"),
        pytest.param(["::ffff:10.0.0.1"], id="mapped"),
        pytest.param(["fe80::1%eth0"], id="with-a-zone"),
    ],
)
def test_a_name_with_a_private_address_is_refused_without_telling_it(addresses: list[str]) -> None:
    """Lost if red: a name as a way in, or a refusal that maps the network for whoever asks."""
    guard = Guard([], lookup=names(evil_example=[addresses]))
    guard.check_url("https://evil.example/")
    with pytest.raises(Refused) as refused:
        asyncio.run(guard.resolve("evil.example", 443))
    assert "evil.example" in str(refused.value)
    assert not any(address in str(refused.value) for address in addresses)


def test_names_resolve_to_what_may_be_called() -> None:
    """Lost if red: every tool and provider by name; an unknown name as a refusal."""
    lookup = names(good_example=[[PUBLIC, "2606:4700::1111"]], tools_internal=[["10.0.0.1"]])
    guard = Guard(["tools.internal:9000"], lookup=lookup)
    assert asyncio.run(guard.resolve("good.example", 443)) == [PUBLIC, "2606:4700::1111"]
    assert asyncio.run(guard.resolve("tools.internal", 9000)) == ["10.0.0.1"]
    assert asyncio.run(guard.resolve(PUBLIC, 443)) == [PUBLIC]
    assert asyncio.run(guard.resolve("2606:4700::1111", 443)) == ["2606:4700::1111"]
    with pytest.raises(Refused):
        asyncio.run(guard.resolve("tools.internal", 9001))
    with pytest.raises(Refused):
        asyncio.run(guard.resolve("::1", 443))
    with pytest.raises(OSError, match="no such name"):
        asyncio.run(guard.resolve("unknown.example", 443))


def test_no_address_at_all_is_an_error_and_no_pass() -> None:
    """Lost if red: a check that nothing failed because there was nothing."""
    with pytest.raises(OSError, match="no address"):
        asyncio.run(Guard([], lookup=names(empty_example=[[]])).resolve("empty.example", 443))


def test_the_machines_own_resolver_is_asked_and_checked() -> None:
    """Lost if red: `localhost` as a name for what no tenant may reach."""
    assert "127.0.0.1" in asyncio.run(look_up("localhost", 80))
    with pytest.raises(Refused):
        asyncio.run(Guard([]).resolve("LOCALHOST", 80))


async def get(guard: Guard, url: str) -> int:
    """The status of a GET through the guard's connector, of whatever the URL says."""
    async with (
        aiohttp.ClientSession(connector=guard.connector()) as http,
        http.get(url, allow_redirects=False) as response,
    ):
        return response.status


def test_the_connector_refuses_an_address_in_the_url(server: ToolServer) -> None:
    """Lost if red: loopback, for a caller that forgot to check: no resolver sees such a URL."""
    with pytest.raises(Refused):
        asyncio.run(get(Guard([]), server.url()))
    with pytest.raises(Refused):
        asyncio.run(get(Guard(["127.0.0.1:1"]), server.url()))
    with pytest.raises(Refused):
        asyncio.run(get(Guard([]), f"http://[::ffff:127.0.0.1]:{server.port}/"))
    assert server.asked == []


def test_the_connector_refuses_a_name_that_has_become_private(server: ToolServer) -> None:
    """Lost if red: a name that is public when checked and 127.0.0.1 when called."""

    async def run() -> None:
        guard = Guard([], lookup=names(turn_example=[[PUBLIC], ["127.0.0.1"]]))
        assert await guard.resolve("turn.example", server.port) == [PUBLIC]
        await get(guard, f"http://turn.example:{server.port}/")

    with pytest.raises(Refused):
        asyncio.run(run())
    assert server.asked == []


def test_the_connector_connects_to_what_was_checked(server: ToolServer) -> None:
    """Lost if red: a second answer of the name server, which nobody checked."""
    lookup = names(tools_internal=[["127.0.0.1"], ["192.0.2.1"]])
    guard = Guard([f"tools.internal:{server.port}"], lookup=lookup)
    assert asyncio.run(get(guard, f"http://tools.internal:{server.port}/")) == 200
    assert server.asked[0].headers["host"] == f"tools.internal:{server.port}"


def test_the_connector_reaches_an_address_that_is_let_through(server: ToolServer) -> None:
    """Lost if red: the operator's own tools by address."""
    assert asyncio.run(get(Guard([server.host]), server.url())) == 200


def test_a_redirect_that_a_client_follows_by_itself_is_checked_too(server: ToolServer) -> None:
    """Lost if red: the metadata service, by way of a client that follows redirects."""
    server.on("/away", redirect(302, f"http://localhost:{server.port}/inside"))

    async def run() -> None:
        async with (
            aiohttp.ClientSession(connector=Guard([server.host]).connector()) as http,
            http.get(server.url("/away")),
        ):
            pass

    with pytest.raises(Refused):
        asyncio.run(run())
    assert [asked.path for asked in server.asked] == ["/away"]
