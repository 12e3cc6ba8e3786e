"""`http` tools against a real server: what is sent, where it may go, what comes back."""

import asyncio
import gzip
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from chalicelib.config import Settings
from chalicelib.outbound import Guard, Lookup, look_up
from chalicelib.providers.base import ToolCall
from chalicelib.tools.base import ToolContext, ToolOutcome
from chalicelib.tools.definitions import Definition, ToolDefinition
from chalicelib.tools.toolbox import ToolDeps, open_toolbox
from tests.fakes.tool_server import Answer, Asked, ToolServer, redirect

DEFINITION: TypeAdapter[Definition] = TypeAdapter(ToolDefinition)
CONTEXT = ToolContext(
    tenant_id="ten_1",
    session_id="sess_1",
    turn_id="tur_1",
    call_id="call_1",
    agent_name="assistant",
    user_id=None,
    group_id=None,
    now=datetime.now(UTC),
)
SECRETS = {"key": "s3cr3t-k3y", "lines": "a\r\nX-Evil: 1", "pasted": " p4sted-k3y\n"}
KEYED = {"Authorization": "Bearer {{secret:key}}", "X-Plain": "as it is"}
ANY = {
    "type": "object",
    "properties": {name: {} for name in ("id", "q", "n", "list", "deep", "text")},
}


async def secret(tenant_id: str, name: str) -> str | None:
    """The tenant's secrets of these tests."""
    return SECRETS.get(name) if tenant_id == "ten_1" else None


@pytest.fixture
def server() -> Iterator[ToolServer]:
    """The tenant's own API."""
    with ToolServer() as made:
        yield made


@pytest.fixture
def other() -> Iterator[ToolServer]:
    """Somebody else's server."""
    with ToolServer() as made:
        yield made


def call(
    url: str,
    arguments: dict[str, Any] | None = None,
    *,
    allowed: tuple[str, ...] = ("127.0.0.1",),
    lookup: Lookup = look_up,
    times: int = 1,
    **definition: Any,
) -> ToolOutcome:
    """What becomes of a call of the tool with this URL; of the last of `times` calls."""
    entry = {"kind": "http", "name": "tool", "method": "GET", "url": url, "parameters": ANY}
    deps = ToolDeps(settings=Settings(), guard=Guard(allowed, lookup=lookup), secret=secret)
    wish = ToolCall(id="call_1", name="tool", arguments=json.dumps(arguments or {}))

    async def run() -> ToolOutcome:
        tool = DEFINITION.validate_python(entry | definition)
        box = await open_toolbox([tool], tenant_id="ten_1", read_only=False, deps=deps)
        try:
            for _ in range(times - 1):
                await box.call(wish, CONTEXT)
            return await box.call(wish, CONTEXT)
        finally:
            await box.close()

    return asyncio.run(run())


@pytest.mark.parametrize(
    ("template", "arguments", "path"),
    [
        pytest.param("/a/{id}", {"id": "x"}, "/a/x", id="plain"),
        pytest.param("/a/{id}", {"id": "x/y"}, "/a/x%2Fy", id="slash"),
        pytest.param("/a/{id}", {"id": "x?y=1#z"}, "/a/x%3Fy%3D1%23z", id="question-and-hash"),
        pytest.param("/a/{id}/b", {"id": "ü 👍"}, "/a/%C3%BC%20%F0%9F%91%8D/b", id="unicode"),
        pytest.param("/a/{id}", {"id": "x\r\nHost: y"}, "/a/x%0D%0AHost%3A%20y", id="line-break"),
        pytest.param("/a/{id}", {"id": "%2e%2e"}, "/a/%252e%252e", id="escaped-already"),
        pytest.param("/a/{id}", {"id": "..x"}, "/a/..x", id="dots-in-a-name"),
        pytest.param("/a/{id}.json", {"id": 7}, "/a/7.json", id="number"),
        pytest.param("/a/{id}", {"id": True}, "/a/true", id="boolean"),
        pytest.param("/a/@{id};v=1", {"id": "@x"}, "/a/@%40x;v=1", id="within-a-segment"),
        pytest.param("/a?q={q}", {"q": "b&c=d+e f"}, "/a?q=b%26c%3Dd%2Be%20f", id="query"),
        pytest.param("/a?q={q}&n={n}", {"n": 0}, "/a?n=0", id="absent-goes"),
        pytest.param("/a?q={q}&n={n}", {"q": None, "n": ""}, "/a?n=", id="null-goes-empty-stays"),
        pytest.param("/a?q={q}", {}, "/a", id="all-absent"),
        pytest.param("/a?q=x{q}y", {}, "/a?q=xy", id="absent-within-a-text"),
        pytest.param("/a?l={list}", {"list": [1, "b"]}, "/a?l=%5B1%2C%22b%22%5D", id="list"),
        pytest.param("/a?q={q}", {"q": "{n}", "n": 1}, "/a?q=%7Bn%7D&n=1", id="place-in-a-value"),
        pytest.param("/a", {"q": "é", "n": 1.5}, "/a?q=%C3%A9&n=1.5", id="without-a-place"),
        pytest.param("", {"q": "x"}, "/?q=x", id="no-path"),
        pytest.param("/ü?ö=%20", {}, "/%C3%BC?%C3%B6=%20", id="template-is-escaped-once"),
    ],
)
def test_arguments_go_into_the_url(
    server: ToolServer, template: str, arguments: dict[str, Any], path: str
) -> None:
    """Lost if red: an argument that leads a tenant's key to another path of the API."""
    assert not call(server.url(template), arguments).is_error
    assert [asked.path for asked in server.asked] == [path]


@pytest.mark.parametrize(
    "value", ["..", ".", "../admin", "a/../b", "..\\admin", "a/.", "", None, "x" * 9000]
)
def test_an_argument_that_would_move_the_path_is_refused(server: ToolServer, value: Any) -> None:
    """Lost if red: `DELETE /notes/{id}` as `DELETE /notes/..`, which servers make `/`."""
    outcome = call(server.url("/notes/{id}/tags"), {} if value is None else {"id": value})
    assert outcome.is_error
    assert server.asked == []
    assert "`id`" in outcome.text or "8000" in outcome.text


@pytest.mark.parametrize(
    ("method", "body", "arguments", "sent"),
    [
        pytest.param("POST", None, {"q": "é", "n": 1}, {"q": "é", "n": 1}, id="the-arguments"),
        pytest.param("PUT", None, {}, {}, id="no-arguments"),
        pytest.param("PATCH", {"a": "{q}"}, {"q": [1, {"b": None}]}, {"a": [1, {"b": None}]}),
        pytest.param("POST", "{deep}", {"deep": {"x": 1}}, {"x": 1}, id="all-of-it"),
        pytest.param("POST", {"a": "{q}", "b": "{n}"}, {"q": None}, {"a": None}, id="absent-goes"),
        pytest.param("POST", ["{q}", "{n}", 1], {"n": 0}, [0, 1], id="absent-item-goes"),
        pytest.param(
            "POST", {"t": "{q} of {n}{list}"}, {"q": 'a"b', "n": 2}, {"t": 'a"b of 2'}, id="text"
        ),
        pytest.param(
            "POST", {"t": "{{q}} {q}"}, {"q": "{n}", "n": 1}, {"t": "{q} {n}"}, id="brace"
        ),
        pytest.param("POST", {"{q}": False}, {"q": "x"}, {"{q}": False}, id="names-are-not-filled"),
    ],
)
def test_arguments_go_into_the_body(
    server: ToolServer, method: str, body: Any, arguments: dict[str, Any], sent: Any
) -> None:
    """Lost if red: APIs that take JSON."""
    template = {} if body is None else {"body": body}
    assert not call(server.url("/x"), arguments, method=method, **template).is_error
    (asked,) = server.asked
    assert (asked.method, asked.path, asked.json) == (method, "/x", sent)
    assert asked.headers["content-type"] == "application/json"


def test_a_body_of_one_argument_that_is_absent_is_no_body(server: ToolServer) -> None:
    """Lost if red: `null` for an API that was told nothing."""
    assert not call(server.url("/x"), method="POST", body="{q}").is_error
    assert server.asked[0].body == b""


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_a_method_without_a_body_sends_none(server: ToolServer, method: str) -> None:
    """Lost if red: servers that refuse a GET with a body."""
    assert not call(server.url("/x"), {"q": "a"}, method=method).is_error
    (asked,) = server.asked
    assert (asked.method, asked.path, asked.body) == (method, "/x?q=a", b"")
    assert "content-type" not in asked.headers


def test_headers_hold_the_tenants_secrets(server: ToolServer) -> None:
    """Lost if red: every API with a key; a secret's line break as a header of its own."""
    headers = {**KEYED, "X-Pasted": "{{secret:pasted}}", "Content-Type": "application/x+json"}
    assert not call(server.url(), {"q": 1}, method="POST", headers=headers).is_error
    sent = server.asked[0].headers
    assert sent["authorization"] == "Bearer s3cr3t-k3y"
    assert (sent["x-plain"], sent["x-pasted"]) == ("as it is", "p4sted-k3y")
    assert sent["content-type"] == "application/x+json"
    assert sent["user-agent"] == "Palimpsest"


@pytest.mark.parametrize(
    ("name", "told"), [("gone", "has not been set"), ("lines", "holds line breaks")]
)
def test_a_secret_that_cannot_be_used_is_named(server: ToolServer, name: str, told: str) -> None:
    """Lost if red: a call without its key, or why a tool never works."""
    outcome = call(server.url(), headers={"X-Key": f"{{{{secret:{name}}}}}"})
    assert outcome.is_error
    assert name in outcome.text
    assert told in outcome.text
    assert "X-Evil" not in outcome.text
    assert server.asked == []


def test_another_tenants_secrets_are_not_there(server: ToolServer) -> None:
    """Lost if red: one tenant's key in another's calls."""
    entry = DEFINITION.validate_python(
        {"kind": "http", "name": "tool", "method": "GET", "url": server.url(), "headers": KEYED}
    )

    async def run() -> ToolOutcome:
        deps = ToolDeps(settings=Settings(), guard=Guard(["127.0.0.1"]), secret=secret)
        box = await open_toolbox([entry], tenant_id="ten_2", read_only=False, deps=deps)
        try:
            return await box.call(ToolCall(id="c", name="tool", arguments=""), CONTEXT)
        finally:
            await box.close()

    assert "has not been set" in asyncio.run(run()).text
    assert server.asked == []


@pytest.mark.parametrize("status", [200, 401])
def test_a_secret_that_the_server_sends_back_is_masked(server: ToolServer, status: int) -> None:
    """Lost if red: the key in the chat, the events and the next request to the model."""

    def echo(asked: Asked) -> Answer:
        return Answer(status=status, pieces=[f"you sent {asked.headers['authorization']}".encode()])

    server.on("/", echo)
    outcome = call(server.url(), headers=KEYED)
    assert outcome.text.endswith("you sent Bearer ***")
    assert outcome.is_error == (status == 401)


def test_a_secret_on_the_edge_of_what_is_read_is_masked(server: ToolServer) -> None:
    """Lost if red: most of a key, where a long answer was cut within it."""
    filler = b"x" * ((1 << 20) - len("s3cr3t-")) + b"s3cr3t-k3y"
    server.on("/", Answer(pieces=[filler], endless=True))
    outcome = call(server.url(), headers=KEYED)
    assert "s3cr" not in outcome.text
    assert "x***\n" in outcome.text
    failed = b"x" * 990 + b"s3cr3t-k3y" + b"x" * 5000
    server.on("/", Answer(status=500, pieces=[failed]))
    assert "s3cr" not in call(server.url(), headers=KEYED).text


@pytest.mark.parametrize(
    ("content_type", "body", "text"),
    [
        ("application/json", '{"ü": 1}'.encode(), '{"ü": 1}'),
        ("application/problem+json; x=y", b"{}", "{}"),
        ("text/html; charset=iso-8859-1", "<p>ü".encode("latin-1"), "<p>ü"),
        ("text/plain; charset=Shift_JIS", "日本".encode("shift_jis"), "日本"),
        ("text/plain; charset=utf-16", "日本".encode("utf-16"), "日本"),
        ("text/plain", b"\xef\xbb\xbfmark", "mark"),
        ("text/plain; charset=utf-8", b"\xef\xbb\xbfmark", "mark"),
        ("text/plain", b"a\xff\x00b", "a\ufffd\ufffdb"),
        ("text/plain; charset=hex", b"6162", "6162"),
        ("text/plain; charset=punycode", b"ab-", "ab-"),
        ("text/plain; charset=nonsense\x00", b"ab", "ab"),
        ("", b"untyped", "untyped"),
        ("application/octet-stream", "ünlabelled".encode(), "ünlabelled"),
        ("nonsense", b"{}", "{}"),
    ],
)
def test_an_answer_in_text_is_read(
    server: ToolServer, content_type: str, body: bytes, text: str
) -> None:
    """Lost if red: what an API says, in any of the ways in which it may say so."""
    headers = {"Content-Type": content_type.replace("\x00", "")}
    server.on("/", Answer(headers=headers, pieces=[body]))
    assert call(server.url()) == ToolOutcome(text=text)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("image/png", b"text after all"),
        ("application/pdf", b"%PDF-1.7"),
        ("application/octet-stream", b"\x89PNG\xff"),
        ("application/octet-stream", b"text\x00"),
        ("", b"\xff\xfe\xfd"),
    ],
)
def test_an_answer_that_is_no_text_is_told_of(
    server: ToolServer, content_type: str, body: bytes
) -> None:
    """Lost if red: a megabyte of an image's bytes as the model's reading."""
    server.on("/", Answer(headers={"Content-Type": content_type}, pieces=[body]))
    outcome = call(server.url())
    assert f"200 OK with {len(body)} bytes that are no text" in outcome.text
    assert not outcome.is_error


def test_an_answer_without_content_says_so(server: ToolServer) -> None:
    """Lost if red: an empty result, which some vendors refuse and models take for a failure."""
    server.on("/", Answer(status=204, headers={}, pieces=()))
    assert call(server.url()).text == "The server answered 204 No Content, without content."


@pytest.mark.parametrize("status", [300, 304, 400, 404, 418, 500, 503, 599])
def test_an_answer_that_is_no_success_is_an_error(server: ToolServer, status: int) -> None:
    """Lost if red: an error page as a result, or a failure without its reason."""
    empty = status == 304
    server.on("/", Answer(status=status, pieces=() if empty else (b"why " * 1000,)))
    outcome = call(server.url())
    assert outcome.is_error
    assert outcome.text.startswith(f"The server answered {status}")
    assert ("why why" in outcome.text) != empty
    assert len(outcome.text) < 1100


def test_an_endless_answer_is_cut(server: ToolServer) -> None:
    """Lost if red: the process's memory, to whoever has a server that never stops."""
    server.on("/", Answer(pieces=["ü€".encode() * 10_000], endless=True))
    outcome = call(server.url())
    assert not outcome.is_error
    assert outcome.whole is not None
    assert outcome.whole.endswith("[The answer goes on; only its first 1048576 bytes were read.]")
    assert "\ufffd" not in outcome.whole
    assert len(outcome.text) <= 16_000


def test_an_endless_failure_is_cut(server: ToolServer) -> None:
    """Lost if red: the same, by an error."""
    server.on("/", Answer(status=500, pieces=[b"x" * 10_000], endless=True))
    assert len(call(server.url()).text) < 1100


def test_a_compressed_answer_is_bounded_by_what_it_unpacks_to(server: ToolServer) -> None:
    """Lost if red: a gigabyte out of a megabyte."""
    bomb = gzip.compress(b"x" * (64 << 20))
    headers = {"Content-Type": "text/plain", "Content-Encoding": "gzip"}
    server.on("/", Answer(headers=headers, pieces=[bomb]))
    outcome = call(server.url())
    assert outcome.whole is not None
    assert len(outcome.whole) < (1 << 20) + 200
    server.on("/", Answer(headers=headers, pieces=[gzip.compress("kläin".encode())]))
    assert call(server.url()).text == "kläin"


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(Answer(pieces=[b"a", b"b"], hold_at=0), id="before-the-answer"),
        pytest.param(Answer(pieces=[b"a", b"b"], hold_at=1), id="within-it"),
        pytest.param(Answer(status=500, pieces=[b"a", b"b"], hold_at=1), id="within-a-failure"),
    ],
)
def test_a_server_that_hangs_is_given_up(server: ToolServer, script: Answer) -> None:
    """Lost if red: a turn that waits for a tool until it is cut itself."""
    server.on("/", script)
    outcome = call(server.url(), timeout=0.3)
    assert outcome.is_error
    assert "timed out after 0.3 s" in outcome.text


def test_a_connection_that_breaks_is_told_as_that(server: ToolServer) -> None:
    """Lost if red: half an answer as a whole one."""
    script = Answer(headers={"Content-Length": "100"}, pieces=[b"half"], reset=True)
    server.on("/", script)
    outcome = call(server.url())
    assert outcome.is_error
    assert "broke off the connection" in outcome.text


@pytest.mark.parametrize("method", ["GET", "PUT", "DELETE", "POST"])
def test_a_call_is_sent_a_single_time(method: str, server: ToolServer) -> None:
    """Lost if red: one effect of one call: the server may have carried it out and then died."""
    server.on("/", Answer(pieces=(), reset=True))
    outcome = call(server.url(), method=method)
    assert "whether the call had an effect is unknown" in outcome.text
    assert len(server.asked) == 1


def test_a_server_that_is_not_there_is_told_without_details() -> None:
    """Lost if red: addresses and errors of our network, for whoever can define a tool."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    outcome = call(f"http://127.0.0.1:{port}/")
    assert outcome == ToolOutcome(text="The server could not be reached.", is_error=True)


def test_a_name_that_is_private_and_one_that_is_not_there_look_alike() -> None:
    """Lost if red: a map of the names in our network."""

    async def lookup(host: str, port: int) -> list[str]:
        if host == "there.internal":
            return ["10.1.2.3"]
        raise OSError("no such name")

    there = call("https://there.internal/", allowed=(), lookup=lookup)
    gone = call("https://gone.internal/", allowed=(), lookup=lookup)
    assert there.is_error
    assert there.text.replace("there", "gone") == gone.text
    assert "10.1" not in there.text


@pytest.mark.parametrize(
    "url",
    [
        "https://169.254.169.254/latest/meta-data/",
        "http://169.254.169.254/",
        "https://[::ffff:169.254.169.254]/",
        "https://[64:ff9b::a9fe:a9fe]/",
        "https://localhost/",
        "http://example.com/",
    ],
)
def test_what_may_not_be_called_is_not(url: str) -> None:
    """Lost if red: the machine's own keys, by a tool that a tenant defines."""
    outcome = call(url, allowed=("127.0.0.1:1",))
    assert outcome.is_error
    told = "no public address" if url.startswith("https:") else "must begin with https://"
    assert told in outcome.text


@pytest.mark.parametrize(
    ("status", "method", "then"),
    [
        (301, "GET", "GET"),
        (302, "POST", "GET"),
        (302, "PUT", "PUT"),
        (303, "POST", "GET"),
        (303, "DELETE", "GET"),
        (307, "POST", "POST"),
        (308, "PATCH", "PATCH"),
    ],
)
def test_a_redirect_is_followed_as_its_status_says(
    server: ToolServer, status: int, method: str, then: str
) -> None:
    """Lost if red: APIs that moved; a payment that a redirect makes twice."""
    server.on("/a", redirect(status, "b?x=1#part"))
    assert not call(server.url("/a"), {"q": "1"}, method=method, headers=KEYED).is_error
    first, second = server.asked
    assert (second.method, second.path) == (then, "/b?x=1")
    assert second.body == (first.body if then == method else b"")
    assert second.headers["authorization"] == "Bearer s3cr3t-k3y"


def test_no_header_of_the_entry_follows_to_another_origin(
    server: ToolServer, other: ToolServer
) -> None:
    """Lost if red: a tenant's key, in the hands of whoever a server redirects to."""
    server.on("/a", redirect(307, other.url("/b")))
    other.on("/b", redirect(307, server.url("/c")))
    assert not call(server.url("/a"), {"q": "1"}, method="POST", headers=KEYED).is_error
    first, last = server.asked
    for asked in (other.asked[0], last):
        assert asked.json == {"q": "1"}
        assert not {"authorization", "x-plain", "cookie"} & set(asked.headers)
    assert "authorization" in first.headers


def test_another_name_of_the_same_server_is_another_origin(server: ToolServer) -> None:
    """Lost if red: the same, where both names lead to one machine."""
    server.on("/a", redirect(302, f"http://localhost:{server.port}/b"))
    outcome = call(server.url("/a"), headers=KEYED, allowed=("127.0.0.1", "localhost"))
    assert not outcome.is_error
    assert "authorization" not in server.asked[1].headers


UNSAFE = (
    "http://169.254.169.254/latest/meta-data/",
    "http://example.com/",
    "//169.254.170.2/v2/credentials",
    "file:///etc/passwd",
)


@pytest.mark.parametrize(
    "location",
    [
        *UNSAFE,
        "https://169.254.169.254/latest/meta-data/",
        "https://[::ffff:127.0.0.1]/",
        "https://2130706433/",
        "http://2130706433/",
        "https://user:password@example.com/",
        "https://inside.example/",
        "https://[::1",
        "\\\\169.254.169.254\\x",
    ],
)
def test_a_redirect_to_what_may_not_be_called_is_not_followed(
    server: ToolServer, location: str
) -> None:
    """Lost if red: the metadata service, by way of any server on the internet."""

    async def lookup(host: str, port: int) -> list[str]:
        return ["10.0.0.1"]

    server.on("/a", redirect(302, location))
    outcome = call(server.url("/a"), allowed=(server.host,), lookup=lookup)
    assert outcome.is_error
    assert "10.0.0.1" not in outcome.text
    assert "302" not in outcome.text
    assert ("must begin with https://" in outcome.text) == (location in UNSAFE)
    assert len(server.asked) == 1


def test_three_redirects_are_followed_and_no_more(server: ToolServer) -> None:
    """Lost if red: a call that goes round for ever."""
    for place in range(4):
        server.on(f"/{place}", redirect(302, f"/{place + 1}"))
    assert not call(server.url("/1")).is_error
    server.asked.clear()
    outcome = call(server.url("/0"))
    assert (outcome.is_error, "more than 3 times" in outcome.text) == (True, True)
    assert [asked.path for asked in server.asked] == ["/0", "/1", "/2", "/3"]


def test_a_redirect_without_a_place_is_a_failure(server: ToolServer) -> None:
    """Lost if red: a turn that breaks over a header that is missing."""
    server.on("/a", Answer(status=302, headers={}, pieces=()))
    assert call(server.url("/a")).text.startswith("The server answered 302 Found")


def test_a_redirect_in_raw_utf8_is_followed(server: ToolServer) -> None:
    """Lost if red: servers that do not escape."""
    server.on("/a", redirect(302, "/ü b?q=ö"))
    assert not call(server.url("/a")).is_error
    assert server.asked[1].path == "/%C3%BC%20b?q=%C3%B6"


def test_no_cookie_goes_from_one_call_to_the_next(server: ToolServer) -> None:
    """Lost if red: one user's session at the API, in another's call."""
    server.on("/", Answer(headers={"Set-Cookie": "session=1; Path=/"}))
    call(server.url(), times=2)
    assert [asked.headers.get("cookie") for asked in server.asked] == [None, None]


@pytest.fixture
def impostor(tmp_path: Path) -> Iterator[str]:
    """The host of a TLS server whose certificate nobody vouches for."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder(subject_name=name, issuer_name=name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = tmp_path / "server.pem"
    pem.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, suppress(OSError):  # the caller hangs up, as it should
                context.wrap_socket(connection, server_side=True).close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"localhost:{listening.getsockname()[1]}"
        thread.join(5)


def test_a_server_that_is_not_who_it_says_is_not_called(impostor: str) -> None:
    """Lost if red: a tenant's key, read by whoever sits on the way."""
    outcome = call(f"https://{impostor}/", headers=KEYED, allowed=("localhost",))
    assert outcome.text == "The server's TLS certificate is not valid."
