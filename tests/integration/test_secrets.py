"""Tenants' keys and secrets as turns read them: for a while from memory, sealed here or by KMS."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import boto3
import pytest
from moto.server import ThreadedMotoServer

from chalicelib import auth
from chalicelib.config import Secret, Settings
from chalicelib.db import Database
from chalicelib.errors import InvalidField, NotFound, Unavailable
from chalicelib.secrets import ProviderKey, Secrets
from chalicelib.vault import CannotOpen, Vault
from tests.support.postgres import TestDatabase, free_port

KEY = base64.b64encode(b"a key of 32 bytes for this file!").decode()
LOCAL = Settings(vault_key=Secret(KEY))
SEALED = "SELECT sealed FROM pal.tenant_secrets WHERE kind = %s AND name = %s"
PLACE = {"kind": "tool", "name": "weather"}


@pytest.fixture
def tenants(database: TestDatabase) -> tuple[str, str]:
    """Two tenants' ids."""

    async def make() -> tuple[str, str]:
        db = Database(database.owner, size=1)
        await db.open()
        try:
            one = await auth.create_tenant(db, name="one")
            return one, await auth.create_tenant(db, name="two")
        finally:
            await db.close()

    return asyncio.run(make())


@pytest.fixture
def use(database: TestDatabase) -> Callable[..., Any]:
    """Runs a coroutine with the secrets of one process or more."""

    @asynccontextmanager
    async def processes(settings: Settings, clock: "Clock", count: int) -> AsyncIterator[Any]:
        made = [Database(database.app, size=4) for _ in range(count)]
        for db in made:
            await db.open()
        try:
            found = [Secrets(db, Vault(settings), clock=clock) for db in made]
            yield found[0] if count == 1 else found
        finally:
            for db in made:
                await db.close()

    def run(
        work: Callable[[Any, Clock], Coroutine[Any, Any, Any]],
        settings: Settings = LOCAL,
        *,
        count: int = 1,
    ) -> Any:
        async def whole() -> Any:
            clock = Clock()
            async with asyncio.timeout(30), processes(settings, clock, count) as secrets:
                return await work(secrets, clock)

        return asyncio.run(whole())

    return run


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def unreadable(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The secrets that the log calls unreadable, one entry a line."""
    return [
        record.__dict__["secret"]
        for record in caplog.records
        if record.__dict__.get("action") == "secret_unreadable"
    ]


def test_turns_read_what_was_set(
    use: Callable[..., Any], tenants: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: tools and models with a tenant's own keys."""
    one, two = tenants

    async def work(secrets: Secrets, clock: Clock) -> None:
        await secrets.put_tool_secret(one, "weather", "a token")
        await secrets.put_providers(
            one,
            {
                "openai": ProviderKey(api_key=Secret("sk-1")),
                "openai@groq": ProviderKey(api_key=Secret("sk-2"), base_url="https://g.example"),
            },
        )
        assert await secrets.tool_secret(one, "weather") == "a token"
        assert await secrets.tool_secret(one, "mail") is None
        assert await secrets.tool_secret(one, "openai") is None
        keys = await secrets.provider_keys(one)
        assert keys == {"openai": ("sk-1", None), "openai@groq": ("sk-2", "https://g.example")}
        assert "sk-1" not in f"{keys} {await secrets.tool_secret(one, 'weather')!r}"
        for name in ("weather", "mail"):
            assert await secrets.tool_secret(two, name) is None
        assert await secrets.provider_keys(two) == {}

    use(work)
    assert unreadable(caplog) == []


def test_a_process_reads_its_own_changes_at_once(
    use: Callable[..., Any], tenants: tuple[str, str]
) -> None:
    """Lost if red: half a minute with a key that was changed because it had leaked."""
    one, _ = tenants

    async def work(secrets: Secrets, clock: Clock) -> None:
        assert await secrets.tool_secret(one, "weather") is None
        for value in ("first", "second"):
            await secrets.put_tool_secret(one, "weather", value)
            assert await secrets.tool_secret(one, "weather") == value
        await secrets.delete_tool_secret(one, "weather")
        assert await secrets.tool_secret(one, "weather") is None
        with pytest.raises(NotFound):
            await secrets.delete_tool_secret(one, "weather")
        for key in ("sk-1", "sk-2"):
            await secrets.put_providers(one, {"openai": ProviderKey(api_key=Secret(key))})
            assert await secrets.provider_keys(one) == {"openai": (key, None)}
        await secrets.put_providers(one, {"openai": None})
        assert await secrets.provider_keys(one) == {}

    use(work)


def test_another_process_reads_a_change_within_half_a_minute(
    use: Callable[..., Any], tenants: tuple[str, str], database: TestDatabase
) -> None:
    """Lost if red: a query before each call of a tool, or a key that is never seen to change."""
    one, _ = tenants

    async def work(both: list[Secrets], clock: Clock) -> None:
        here, there = both
        for value in ("first", "second"):
            await here.put_tool_secret(one, "weather", value)
            await here.put_providers(one, {"openai": ProviderKey(api_key=Secret(value))})
            if value == "first":
                assert await there.tool_secret(one, "weather") == "first"
                assert await there.tool_secret(one, "mail") is None
                assert await there.provider_keys(one) == {"openai": ("first", None)}
        await here.put_tool_secret(one, "mail", "third")
        asked = there._db.transactions
        clock.now += 29.9
        assert await there.tool_secret(one, "weather") == "first"
        assert await there.tool_secret(one, "mail") is None
        assert await there.provider_keys(one) == {"openai": ("first", None)}
        assert there._db.transactions == asked
        clock.now += 0.2
        assert await there.tool_secret(one, "weather") == "second"
        assert await there.tool_secret(one, "mail") == "third"
        assert await there.provider_keys(one) == {"openai": ("second", None)}
        # what an agent may name is not believed but looked up
        await here.put_providers(
            one, {"openai": None, "anthropic": ProviderKey(api_key=Secret("k"))}
        )
        async with there._db.tenant(one) as tx:
            assert await there.provider_names(tx) == {"anthropic"}

    use(work, count=2)


class SlowVault(Vault):
    """A vault that opens when it is let."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.opening, self.go_on = asyncio.Event(), asyncio.Event()

    async def open(self, sealed: bytes, **place: str) -> Secret:
        """Wait, then open."""
        self.opening.set()
        await self.go_on.wait()
        return await super().open(sealed, **place)


def test_a_change_during_a_reading_is_not_lost(
    database: TestDatabase, tenants: tuple[str, str]
) -> None:
    """Lost if red: a key that was just replaced, believed for as long as the new one should be."""
    one, _ = tenants

    async def work() -> None:
        vault = SlowVault(LOCAL)
        db = Database(database.app, size=4)
        await db.open()
        try:
            secrets = Secrets(db, vault)
            await secrets.put_tool_secret(one, "weather", "old")
            reading = asyncio.create_task(secrets.tool_secret(one, "weather"))
            await vault.opening.wait()
            await secrets.put_tool_secret(one, "weather", "new")
            vault.go_on.set()
            assert await reading == "old"
            assert await secrets.tool_secret(one, "weather") == "new"
        finally:
            await db.close()

    asyncio.run(asyncio.wait_for(work(), 30))


def test_what_does_not_open_counts_as_missing(
    use: Callable[..., Any],
    tenants: tuple[str, str],
    database: TestDatabase,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Lost if red: every turn of a tenant, for one row of another key, or of another tenant."""
    one, two = tenants

    async def fill(secrets: Secrets, clock: Clock) -> None:
        await secrets.put_tool_secret(one, "weather", "zebra")
        await secrets.put_providers(
            one, {name: ProviderKey(api_key=Secret("okapi")) for name in ("openai", "anthropic")}
        )

    use(fill)
    other = Settings(vault_key=Secret(base64.b64encode(bytes(32)).decode()))

    async def read(secrets: Secrets, clock: Clock) -> None:
        for _ in range(3):
            assert await secrets.tool_secret(one, "weather") is None
            # an empty key: a vendor's is refused then, and the platform's does not pay for it
            unread = {"anthropic": ("", None), "openai": ("", None)}
            assert await secrets.provider_keys(one) == unread
        assert [kept.name for kept in await secrets.list_providers(one)] == ["anthropic", "openai"]
        # setting it anew is the way out
        await secrets.put_providers(one, {"openai": ProviderKey(api_key=Secret("quokka"))})
        assert (await secrets.provider_keys(one))["openai"] == ("quokka", None)

    use(read, other)
    names = ["provider anthropic", "provider openai", "tool weather"]
    assert sorted(unreadable(caplog)) == [names[0], *names]
    assert {record.__dict__["tenant_id"] for record in caplog.records} == {one}
    assert "zebra" not in caplog.text + str([vars(record) for record in caplog.records])
    caplog.clear()

    # rows that someone with a hand on the table has put elsewhere
    copy = (
        "INSERT INTO pal.tenant_secrets (tenant_id, kind, name, sealed, hint)"
        " SELECT %s, %s, %s, sealed, hint FROM pal.tenant_secrets WHERE name = 'weather'"
        " AND tenant_id = %s"
    )
    for tenant, kind, name in (
        (two, "tool", "weather"),
        (one, "tool", "mail"),
        (one, "provider", "openai@weather"),
    ):
        database.rows(copy, tenant, kind, name, one)

    async def look(secrets: Secrets, clock: Clock) -> None:
        assert await secrets.tool_secret(one, "weather") == "zebra"
        assert await secrets.tool_secret(two, "weather") is None
        assert await secrets.tool_secret(one, "mail") is None
        assert (await secrets.provider_keys(one))["openai@weather"] == ("", None)

    use(look)
    assert len(unreadable(caplog)) == 4  # with openai, which the other key has sealed


@pytest.fixture(scope="module")
def aws() -> Iterator[str]:
    """KMS, as moto plays it: its URL."""
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=free_port(), verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture
def kms(aws: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of that KMS, which this process uses by its environment from now on."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", aws)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    return boto3.client("kms")


def make_key(kms: Any) -> str:
    return str(kms.create_key()["KeyMetadata"]["KeyId"])


def sealed_in(database: TestDatabase, kind: str, name: str) -> bytes:
    return bytes(database.one(SEALED, kind, name))  # type: ignore[call-overload]


def test_kms_seals_and_opens(
    use: Callable[..., Any], tenants: tuple[str, str], database: TestDatabase, kms: Any
) -> None:
    """Lost if red: tenants' keys on AWS."""
    one, _ = tenants
    settings = Settings(kms_key=make_key(kms))

    async def work(secrets: Secrets, clock: Clock) -> None:
        await secrets.put_tool_secret(one, "weather", "„zebra“")
        await secrets.put_providers(
            one, {f"openai@n{n}": ProviderKey(api_key=Secret(f"sk-{n}")) for n in range(5)}
        )
        assert await secrets.tool_secret(one, "weather") == "„zebra“"
        assert await secrets.provider_keys(one) == {
            f"openai@n{n}": (f"sk-{n}", None) for n in range(5)
        }

    use(work, settings)
    sealed = sealed_in(database, "tool", "weather")
    assert "„zebra“".encode() not in sealed
    # it is KMS's, bound to its place by the context that CloudTrail shows
    context = {"tenant": one, **PLACE}
    answer = kms.decrypt(CiphertextBlob=sealed[1:], EncryptionContext=context)
    assert answer["Plaintext"].decode() == "„zebra“"
    vault = Vault(settings)
    for place in ({"name": "mail"}, {"kind": "provider"}, {"tenant_id": "ten_x"}):
        with pytest.raises(CannotOpen):
            asyncio.run(vault.open(sealed, **{"tenant_id": one, **PLACE, **place}))


def test_kms_takes_four_thousand_bytes(
    use: Callable[..., Any], tenants: tuple[str, str], database: TestDatabase, kms: Any
) -> None:
    """Lost if red: a 500 for a long secret, on AWS only."""
    one, _ = tenants

    async def work(secrets: Secrets, clock: Clock) -> None:
        await secrets.put_tool_secret(one, "weather", "x" * 4_000)
        for value in ("x" * 4_001, "ä" * 2_001):
            with pytest.raises(InvalidField, match=r"value: .*4000 bytes"):
                await secrets.put_tool_secret(one, "weather", value)
        assert await secrets.tool_secret(one, "weather") == "x" * 4_000

    use(work, Settings(kms_key=make_key(kms)))


def test_what_the_local_key_sealed_opens_after_a_change_to_kms(
    use: Callable[..., Any], tenants: tuple[str, str], database: TestDatabase, kms: Any
) -> None:
    """Lost if red: every tenant's keys, on the day of that change, or of a change of keys."""
    one, _ = tenants
    first, second = make_key(kms), make_key(kms)
    settings = [
        LOCAL,
        Settings(vault_key=Secret(KEY), kms_key=first),
        Settings(vault_key=Secret(KEY), kms_key=second),
    ]
    for n, each in enumerate(settings):

        async def work(secrets: Secrets, clock: Clock, n: int = n) -> None:
            await secrets.put_tool_secret(one, f"secret-{n}", f"value-{n}")
            for before in range(n + 1):
                assert await secrets.tool_secret(one, f"secret-{before}") == f"value-{before}"

        use(work, each)
    assert [sealed_in(database, "tool", f"secret-{n}")[:1] for n in range(3)] == [
        b"\x01",
        b"\x02",
        b"\x02",
    ]


def test_what_kms_will_not_do_is_told_apart_from_a_kms_that_is_away(
    use: Callable[..., Any],
    tenants: tuple[str, str],
    database: TestDatabase,
    kms: Any,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Lost if red: a turn on the platform's key, because the tenant's was out of reach a minute."""
    one, two = tenants
    settings = Settings(kms_key=make_key(kms))

    async def fill(secrets: Secrets, clock: Clock) -> None:
        await secrets.put_tool_secret(one, "weather", "zebra")
        await secrets.put_providers(one, {"openai": ProviderKey(api_key=Secret("okapi"))})

    async def is_refused(secrets: Secrets, clock: Clock) -> None:
        assert await secrets.tool_secret(two, "weather") is None
        assert await secrets.provider_keys(two) == {"openai": ("", None)}
        with pytest.raises(Unavailable, match="PAL_KMS_KEY") as caught:
            await secrets.put_tool_secret(two, "weather", "quokka")
        assert caught.value.code == "vault_unavailable"

    async def is_away(secrets: Secrets, clock: Clock) -> None:
        for work in (
            secrets.tool_secret(one, "weather"),
            secrets.provider_keys(one),
            secrets.put_tool_secret(one, "weather", "quokka"),
        ):
            with pytest.raises(Unavailable, match="KMS did not answer") as caught:
                await work
            assert caught.value.code == "vault_unavailable"
            assert int(caught.value.headers["Retry-After"]) > 0

    async def is_back(secrets: Secrets, clock: Clock) -> None:
        assert await secrets.tool_secret(one, "weather") == "zebra"

    use(fill, settings)
    # rows of another tenant's, and a key of which this account has none
    database.rows(
        "INSERT INTO pal.tenant_secrets (tenant_id, kind, name, sealed, hint)"
        " SELECT %s, kind, name, sealed, hint FROM pal.tenant_secrets",
        two,
    )
    use(is_refused, Settings(kms_key="00000000-0000-0000-0000-000000000000"))
    assert sorted(unreadable(caplog)) == ["provider openai", "tool weather"]
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://127.0.0.1:{free_port()}")
    use(is_away, settings)
    monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", kms.meta.endpoint_url)
    use(is_back, settings)
    told = [record.__dict__ for record in caplog.records if "action" in record.__dict__]
    assert [one["action"] for one in told].count("kms_failed") == 4
    assert not [word for word in ("zebra", "okapi", "quokka") if word in f"{caplog.text} {told}"]


def test_kms_is_asked_beside_the_loop(monkeypatch: pytest.MonkeyPatch, kms: Any) -> None:
    """Lost if red: every stream of the process, which would stand still while KMS thinks."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        await reader.readexactly(int(head.partition("content-length:")[2].split()[0]))
        body = b'{"CiphertextBlob": "emVicmE=", "KeyId": "k"}'
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close"
        writer.write(f"{head}\r\n\r\n".encode() + body)
        await writer.drain()
        writer.close()
        await writer.wait_closed()

    async def work() -> bytes:
        # a server on the same loop answers only if nothing blocks that
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server:
            port = server.sockets[0].getsockname()[1]
            monkeypatch.setenv("AWS_ENDPOINT_URL_KMS", f"http://127.0.0.1:{port}")
            return await Vault(Settings(kms_key="k")).seal("okapi", tenant_id="ten_x", **PLACE)

    assert asyncio.run(asyncio.wait_for(work(), 30)) == b"\x02zebra"
