"""Tenants' own keys and secrets over HTTP: set, listed, removed, and never shown again."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import redirect_stderr
from typing import Any
from urllib.parse import quote

import pytest

from chalicelib import telemetry
from chalicelib.config import Secret, Settings
from chalicelib.ids import new_id
from chalicelib.secrets import PROVIDERS_AT_MOST, TOOL_SECRETS_AT_MOST
from tests.conftest import open_door
from tests.fakes.openai_server import FakeOpenAI
from tests.support.answers import refused
from tests.support.doors import Door
from tests.support.http import Reply
from tests.support.postgres import Cluster
from tests.support.stack import Stack

VAULT_KEY = Secret("a2V5IG9mIDMyIGJ5dGVzLCBmb3IgdGhlIHRlc3RzISE=")
PROVIDERS = "/v1/admin/providers"
SECRETS = "/v1/admin/secrets"
ROWS = "SELECT count(*) FROM pal.tenant_secrets WHERE tenant_id = %s"


@pytest.fixture(scope="module")
def provider() -> Iterator[FakeOpenAI]:
    """The provider of the one system."""
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture(scope="module")
def stack(postgres: Cluster, provider: FakeOpenAI) -> Iterator[Stack]:
    """One system for all of these tests: each has a tenant of its own in it."""
    database = postgres.create()
    made = Stack(
        database,
        provider.base_url,
        vault_key=VAULT_KEY,
        tool_private_hosts=("models.internal", "127.0.0.1:9000"),
    )
    yield made
    made.close()
    postgres.drop(database)


@pytest.fixture
def tenant(stack: Stack) -> tuple[str, str]:
    """A tenant that has nothing yet: (id, key)."""
    return stack.make_tenant(new_id("ten"))


@pytest.fixture(params=["http", "chalice", "rest-api"])
def door(request: pytest.FixtureRequest, stack: Stack, tenant: tuple[str, str]) -> Door:
    """Each way in, in turn, with a new tenant's key."""
    return open_door(request.param, stack, tenant[1])


@pytest.fixture
def http(stack: Stack, tenant: tuple[str, str]) -> Door:
    """The gateway, with a new tenant's key."""
    return open_door("http", stack, tenant[1])


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What a process logs at INFO; afterwards logging is as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level
    written = io.StringIO()
    with redirect_stderr(written):
        telemetry.configure(Settings())
    yield written
    root.handlers[:], root.level = before


def put(door: Door, **providers: Any) -> Reply:
    """The answer to keys, by provider's name; `_at_` stands for the @ in it."""
    named = {name.replace("_at_", "@"): value for name, value in providers.items()}
    return door.call("PUT", PROVIDERS, {"providers": named})


def shown(reply: Reply) -> list[tuple[Any, ...]]:
    """What an answer shows of keys or secrets, once its times are times."""
    assert reply.status == 200, reply.body
    (found,) = reply.json.values()
    assert all(one["updatedAt"].endswith("Z") for one in found)
    keys = ("name", "hint", "baseUrl")
    assert all(set(one) <= {*keys, "updatedAt"} for one in found)
    return [tuple(one[key] for key in keys if key in one) for one in found]


def test_providers_are_set_and_removed_one_by_one(door: Door, stack: Stack) -> None:
    """Lost if red: a tenant's keys; also those that a change does not name."""
    assert shown(door.call("GET", PROVIDERS)) == []
    url = "https://groq.example/openai/v1"
    reply = put(
        door,
        openai={"apiKey": "sk-proj-abcdefgh-1234"},
        openai_at_groq={"apiKey": "gsk_abcdefgh_5678", "baseUrl": url},
    )
    whole = [("openai", "1234"), ("openai@groq", "5678", url)]
    assert shown(reply) == whole
    assert door.call("GET", PROVIDERS).json == reply.json

    assert shown(put(door, anthropic={"apiKey": "sk-ant-abcdefgh-9999"})) == [
        ("anthropic", "9999"),
        *whole,
    ]
    changed = put(door, openai={"apiKey": "sk-proj-abcdefgh-4321"}, anthropic=None)
    assert shown(changed) == [("openai", "4321"), whole[1]]
    times = {one["name"]: one["updatedAt"] for one in reply.json["providers"]}
    now = {one["name"]: one["updatedAt"] for one in changed.json["providers"]}
    assert now["openai"] > times["openai"]
    assert now["openai@groq"] == times["openai@groq"]

    # a key without the URL that it had is one for the vendor itself
    assert shown(put(door, openai={"apiKey": "sk-proj-abcdefgh-4321", "baseUrl": url}))[0][2] == url
    assert shown(put(door, openai={"apiKey": "sk-proj-abcdefgh-4321"}))[0] == ("openai", "4321")
    assert shown(put(door, bedrock=None)) == shown(door.call("GET", PROVIDERS))
    assert shown(put(door)) == shown(door.call("GET", PROVIDERS))
    assert shown(put(door, openai=None, openai_at_groq=None)) == []


def test_secrets_are_set_and_removed_one_by_one(door: Door) -> None:
    """Lost if red: what tools authenticate themselves with."""
    assert shown(door.call("GET", SECRETS)) == []
    made = door.call("PUT", f"{SECRETS}/weather", {"value": "token-abcdefgh-1234"})
    assert made.status == 200
    assert made.json == {"name": "weather", "hint": "1234", "updatedAt": made.json["updatedAt"]}
    assert (
        door.call("PUT", f"{SECRETS}/a.b-c_D", {"value": "„ein Passwort“ mit Leerraum"}).json[
            "hint"
        ]
        == "raum"
    )
    again = door.call("PUT", f"{SECRETS}/weather", {"value": "token-abcdefgh-5678"})
    assert again.json["updatedAt"] > made.json["updatedAt"]
    assert shown(door.call("GET", SECRETS)) == [("a.b-c_D", "raum"), ("weather", "5678")]
    gone = door.call("DELETE", f"{SECRETS}/weather")
    assert (gone.status, gone.body) == (204, b"")
    refused(door.call("DELETE", f"{SECRETS}/weather"), 404, "not_found")
    assert shown(door.call("GET", SECRETS)) == [("a.b-c_D", "raum")]
    assert door.call("DELETE", f"{SECRETS}/a%2Eb%2Dc_D").status == 204
    # the two kinds are apart: a tool's header cannot name a model vendor's key
    put(door, openai={"apiKey": "sk-proj-abcdefgh-1234"})
    refused(door.call("DELETE", f"{SECRETS}/openai"), 404, "not_found")
    assert len(shown(door.call("GET", PROVIDERS))) == 1


@pytest.mark.parametrize(
    ("secret", "hint"),
    [
        pytest.param("x", "", id="one"),
        pytest.param("12345678901", "", id="eleven"),
        pytest.param("123456789012", "9012", id="twelve"),
    ],
)
def test_a_hint_tells_little(secret: str, hint: str, http: Door) -> None:
    """Lost if red: a third of a short password."""
    assert http.call("PUT", f"{SECRETS}/x", {"value": secret}).json["hint"] == hint
    assert put(http, openai={"apiKey": secret}).json["providers"][0]["hint"] == hint


KEY = {"apiKey": "sk-abcdefgh-1234"}
WRONG_PROVIDERS = [
    ({}, "providers"),
    ({"providers": []}, "providers"),
    ({"providers": None}, "providers"),
    ({"openai": KEY}, "openai"),
    ({"providers": {"nobody": KEY}}, "providers.nobody"),
    ({"providers": {"offline": KEY}}, "providers.offline"),
    ({"providers": {"": KEY}}, "providers."),
    ({"providers": {"openai@": KEY}}, "providers.openai@"),
    ({"providers": {"openai@A": KEY}}, "providers.openai@A"),
    ({"providers": {"openai@a.b": KEY}}, "providers.openai@a.b"),
    ({"providers": {"bedrock@a": KEY}}, "providers.bedrock@a"),
    ({"providers": {"openai@" + "a" * 41: KEY}}, "providers.openai@" + "a" * 41),
    ({"providers": {"\ud800": KEY}}, "providers.\\ud800"),
    ({"providers": {"openai\n": KEY}}, "providers.openai\n"),
    ({"providers": {"openai": {}}}, "providers.openai.apiKey"),
    ({"providers": {"openai": {"apiKey": None}}}, "providers.openai.apiKey"),
    ({"providers": {"openai": {"apiKey": ""}}}, "providers.openai.apiKey"),
    ({"providers": {"openai": {"apiKey": "hunter2 hunter2"}}}, "providers.openai.apiKey"),
    ({"providers": {"openai": {"apiKey": "hunter2\n"}}}, "providers.openai.apiKey"),
    ({"providers": {"openai": {"apiKey": "hünter2"}}}, "providers.openai.apiKey"),
    ({"providers": {"openai": {"apiKey": "hunter2" * 600}}}, "providers.openai.apiKey"),
    ({"providers": {"openai": {**KEY, "base_url": "x"}}}, "providers.openai.base_url"),
    ({"providers": {"openai": KEY, "openai@a": KEY}}, "providers.openai@a.baseUrl"),
    (
        {"providers": {"bedrock": {**KEY, "baseUrl": "https://x.example"}}},
        "providers.bedrock.baseUrl",
    ),
    ({"providers": {f"openai@n{n}": None for n in range(33)}}, "providers"),
]
WRONG_URLS = [
    "",
    "x",
    "http://models.example/v1",
    "ftp://models.example/v1",
    "https://",
    "https://user:hunter2@models.example/v1",
    "https://169.254.169.254/latest",
    "https://127.0.0.1/v1",
    "https://127.0.0.1:9001/v1",
    "https://[::ffff:10.0.0.1]/v1",
    "https://0x7f000001/v1",
    "https://models.example/v1?key=hunter2",
    "https://models.example/v1?",
    "https://models.example/v1#x",
    "https://models.example/ v1",
    "https://models.example/\x00",
    "https://models.example/" + "x" * 500,
]


def test_a_wrong_provider_is_named_and_its_key_is_not(
    http: Door, stack: Stack, tenant: tuple[str, str]
) -> None:
    """Lost if red: which field to mend; or a key, in the answer that refused it."""
    wrong = list(WRONG_PROVIDERS)
    wrong += [
        ({"providers": {"openai": {**KEY, "baseUrl": url}}}, "providers.openai.baseUrl")
        for url in WRONG_URLS
    ]
    for body, field in wrong:
        reply = http.call("PUT", PROVIDERS, body)
        refused(reply, 422, "invalid_field", field)
        assert "hunter2" not in reply.body.decode(), body
    # all or nothing
    refused(put(http, anthropic=KEY, openai={**KEY, "baseUrl": "x"}), 422)
    assert stack.database.one(ROWS, tenant[0]) == 0


def test_urls_of_the_operators_choice_are_let_through(http: Door) -> None:
    """Lost if red: models in the operator's own network."""
    for url in ("http://models.internal/v1", "http://127.0.0.1:9000/v1", "https://8.8.8.8/v1"):
        assert shown(put(http, openai={**KEY, "baseUrl": url})) == [("openai", "1234", url)]


def test_a_wrong_secret_is_refused(http: Door, stack: Stack, tenant: tuple[str, str]) -> None:
    """Lost if red: a value with a line break, which is a header more in each request of a tool."""
    for body, field in [
        ({}, "value"),
        ({"value": None}, "value"),
        ({"value": ""}, "value"),
        ({"value": "hunter2\r\nX-Admin: 1"}, "value"),
        ({"value": "hunter2\x00"}, "value"),
        ({"value": "hunter2\x85"}, "value"),
        ({"value": "hunter2\ud800"}, "value"),
        ({"value": "hunter2" * 1_143}, "value"),
        ({"value": {"hunter2": 1}}, "value"),
        ({"value": "x", "secret": "hunter2"}, "secret"),
    ]:
        reply = http.call("PUT", f"{SECRETS}/x", body)
        refused(reply, 422, "invalid_field", field)
        assert "hunter2" not in reply.body.decode()
    for name in ("a b", "a/b", "ä", "x" * 65, ".", "..", "a\n", "\x00", "a:b", "%41"):
        path = f"{SECRETS}/{quote(name, safe='').replace('.', '%2E')}"
        refused(http.call("PUT", path, {"value": "x"}), 422, "invalid_field", "name")
        refused(http.call("DELETE", path), 404, "not_found")
    assert stack.database.one(ROWS, tenant[0]) == 0
    assert http.call("PUT", f"{SECRETS}/{'x' * 64}", {"value": "x" * 8_000}).status == 200
    assert http.call("PUT", f"{SECRETS}/x", {"value": "\U0001f469" * 8_000}).status == 200


def test_there_is_an_end_to_them(http: Door, stack: Stack, tenant: tuple[str, str]) -> None:
    """Lost if red: a list that no answer holds, and a turn that opens a thousand keys."""
    fill = (
        "INSERT INTO pal.tenant_secrets (tenant_id, kind, name, sealed, hint)"
        " SELECT %s, %s, 'openai@n' || n, '\\x01', '' FROM generate_series(1, %s) AS n"
    )
    stack.database.rows(fill, tenant[0], "provider", PROVIDERS_AT_MOST - 1)
    stack.database.rows(fill, tenant[0], "tool", TOOL_SECRETS_AT_MOST - 1)
    assert put(http, openai=KEY).status == 200
    refused(put(http, anthropic=KEY), 422, "invalid_field", "providers")
    assert put(http, anthropic=KEY, openai=None).status == 200
    assert http.call("PUT", f"{SECRETS}/one", {"value": "x"}).status == 200
    refused(http.call("PUT", f"{SECRETS}/two", {"value": "x"}), 422, "invalid_field", "name")
    assert http.call("PUT", f"{SECRETS}/one", {"value": "y"}).status == 200
    assert len(shown(http.call("GET", PROVIDERS))) == PROVIDERS_AT_MOST
    assert len(shown(http.call("GET", SECRETS))) == TOOL_SECRETS_AT_MOST


def test_no_answer_and_no_log_line_holds_a_secret(
    door: Door, stack: Stack, tenant: tuple[str, str], log: io.StringIO
) -> None:
    """Lost if red: a tenant's keys, to whoever reads an answer, the log or the database."""
    key, token = "sk-zebra-okapi-quokka-1234", "wombat axolotl narwhal 5678"
    said: list[Reply] = []

    def say(method: str, path: str, body: Any = None, **more: Any) -> Reply:
        said.append(door.call(method, path, body, **more))
        return said[-1]

    once = {"Idempotency-Key": "k"}
    for _ in range(2):  # the second is no replay: nothing of the first was kept
        keys = {
            "openai": {"apiKey": key},
            "openai@own": {"apiKey": key, "baseUrl": "https://o.example"},
        }
        reply = say("PUT", PROVIDERS, {"providers": keys}, headers=once)
        assert reply.status == 200
        assert "idempotent-replayed" not in reply.headers
        assert say("PUT", f"{SECRETS}/weather", {"value": token}, headers=once).status == 200
    assert say("GET", PROVIDERS).status == 200
    assert say("GET", SECRETS).status == 200
    say("PUT", PROVIDERS, {"providers": {"openai": {"apiKey": key, "baseUrl": "http://x"}}})
    say("PUT", PROVIDERS, {"providers": {"openai": {"apiKey": key + "\n"}}})
    say("PUT", PROVIDERS, {"providers": {"openai": {"apiKey": [key]}}})
    say("PUT", f"{SECRETS}/weather", {"value": token, "more": 1})
    say("PUT", f"{SECRETS}/weather", raw=f'{{"value": "{token}'.encode())
    say("PUT", f"{SECRETS}/{'x' * 65}", {"value": token})
    say("POST", SECRETS, {"value": token})
    # a table that is not as we think, a server that is not there
    break_it = "ALTER TABLE pal.tenant_secrets ADD CONSTRAINT odd CHECK (hint <> '5678') NOT VALID"
    stack.database.rows(break_it)
    broken = say("PUT", f"{SECRETS}/weather", {"value": token})
    assert broken.status == 500
    stack.database.rows("ALTER TABLE pal.tenant_secrets DROP CONSTRAINT odd")
    assert "view_broke" in log.getvalue()

    stored = json.dumps(
        [
            [row for (row,) in stack.database.rows(query)]
            for query in (
                "SELECT to_jsonb(t)::text FROM pal.tenant_secrets t",
                "SELECT encode(sealed, 'escape') FROM pal.tenant_secrets t",
                "SELECT to_jsonb(t)::text FROM pal.idempotency_keys t",
            )
        ],
        ensure_ascii=False,
    )
    places = {
        "answers": " ".join(f"{reply.headers} {reply.body.decode()}" for reply in said),
        "log": log.getvalue(),
        "database": stored,
    }
    for word in ("zebra", "okapi", "quokka", "wombat", "axolotl", "narwhal"):
        assert [place for place, text in places.items() if word in text] == []
    kept = stack.node.run(stack.node.services.secrets.provider_keys(tenant[0]))
    assert kept == {"openai": (key, None), "openai@own": (key, "https://o.example")}
    assert stack.node.run(stack.node.services.secrets.tool_secret(tenant[0], "weather")) == token


def test_without_a_key_to_seal_with_nothing_is_kept(
    postgres: Cluster, provider: FakeOpenAI
) -> None:
    """Lost if red: secrets in the clear, or a person who is told nothing of what to set."""
    database = postgres.create()
    stack = Stack(database, provider.base_url)
    try:
        http = open_door("http", stack, stack.key)
        for reply in (
            put(http, openai=KEY),
            http.call("PUT", f"{SECRETS}/x", {"value": "hunter2"}),
        ):
            body = refused(reply, 503, "vault_unavailable")
            assert "PAL_VAULT_KEY" in body["error"]
            assert int(reply.headers["retry-after"]) > 0
        assert database.one("SELECT count(*) FROM pal.tenant_secrets") == 0
        # what needs no key goes on
        assert shown(put(http, openai=None)) == []
        assert shown(http.call("GET", SECRETS)) == []
    finally:
        stack.close()
        postgres.drop(database)
