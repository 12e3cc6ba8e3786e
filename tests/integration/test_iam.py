"""Logins by IAM token: signed as AWS does, kept for minutes, made anew when one is refused."""

import asyncio
import logging
import re
import ssl
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import psycopg
import pytest
from psycopg import sql

from chalicelib.config import Settings
from chalicelib.db import Database, Login, iam
from chalicelib.db.iam import SECONDS_USED, Credentials, Tokens, sign
from chalicelib.errors import Unavailable
from chalicelib.gateway import __main__ as gateway
from tests.fakes.rds_server import FakeRds, fake_rds
from tests.fakes.role_server import RoleServer, role_server
from tests.support.postgres import Cluster, TestDatabase

AT = datetime(2026, 12, 1, 12, 0, 0, tzinfo=UTC)
ROLE = "pal_token"


@pytest.fixture
def rds(postgres: Cluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeRds]:
    """RDS before the suite's server, with the one access key of this process."""
    be_with_key(monkeypatch, "AKIA1")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    with fake_rds(postgres.socket_dir) as made:
        made.keys["AKIA1"] = "secret of AKIA1"
        yield made


def be_with_key(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"secret of {key}")
    monkeypatch.setenv("AWS_SESSION_TOKEN", f"session/of+{key}=")


async def ask(db: Database, query: str = "SELECT 1") -> object:
    async with db.system() as tx:
        row = await (await tx.execute(query)).fetchone()  # type: ignore[arg-type]
        return (row or [None])[0]


@pytest.mark.parametrize("session", ["", "a/b+c=="], ids=["long-lived", "temporary"])
def test_token_is_what_botocore_signs(session: str) -> None:
    """Lost if red: every login on AWS."""
    from botocore.session import Session

    made = Session()
    made.set_credentials("AKIA1", "secret", session or None)
    client = made.create_client("rds", region_name="eu-west-1")
    host = "palimpsest.proxy-abc123.eu-west-1.rds.amazonaws.com"
    theirs = client.generate_db_auth_token(host, 5432, "pal_app", "eu-west-1")
    signed_at = re.search(r"X-Amz-Date=(\w+)", theirs)
    assert signed_at
    at = datetime.strptime(signed_at[1], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    ours = sign(host, 5432, "pal_app", at, Credentials("AKIA1", "secret", session))
    assert sorted(ours.split("&")) == sorted(theirs.split("&"))


def test_token_is_kept_for_minutes_and_no_longer() -> None:
    """Lost if red: a login with a token that is about to expire, or a signature for each login."""
    now = AT
    key = Credentials("AKIA1", "a")
    signed: list[tuple[str, datetime]] = []

    def count(host: str, port: int, user: str, at: datetime, with_these: Credentials) -> str:
        signed.append((with_these.key, at))
        return f"token {len(signed)}"

    async def credentials() -> Credentials:
        return key

    tokens = Tokens("h", 5432, "u", sign=count, credentials=credentials, clock=lambda: at(now))

    def at(moment: datetime) -> float:
        return moment.timestamp()

    def get(**how: str) -> str:
        return asyncio.run(tokens.get(**how))

    assert [get(), get()] == ["token 1", "token 1"]
    now += timedelta(seconds=SECONDS_USED - 1)
    assert get() == "token 1"
    now += timedelta(seconds=1)
    assert get() == "token 2"
    assert get(instead_of="token 1") == "token 2"  # another login has renewed it already
    assert get(instead_of="token 2") == "token 3"
    now -= timedelta(hours=1)  # the machine's clock was put right
    assert get() == "token 4"
    key = Credentials("AKIA2", "b")
    assert get() == "token 5"
    assert [one for one, _ in signed] == ["AKIA1"] * 4 + ["AKIA2"]


class Passwords(NamedTuple):
    """A role of the suite's server that must give a password, and the token that is next."""

    login: Login
    signed: list[str]


@pytest.fixture
def passwords(postgres: Cluster, database: TestDatabase) -> Iterator[Passwords]:
    """A login whose password is the token that was signed last, on a real Postgres."""
    file = Path(str(database.one("SHOW hba_file")))
    before = file.read_text()
    file.write_text(f"local all {ROLE} scram-sha-256\n{before}")
    postgres.execute(
        "SELECT pg_reload_conf()", sql.SQL("CREATE ROLE {} LOGIN").format(sql.Identifier(ROLE))
    )
    signed: list[str] = []

    def next_one(host: str, port: int, user: str, at: datetime, key: Credentials) -> str:
        signed.append(f"token {len(signed) + 1}")
        return signed[-1]

    async def credentials() -> Credentials:
        return Credentials("AKIA1", "a")

    url = postgres.as_role(ROLE, database.name) + "&sslmode=disable"
    tokens = partial(Tokens, sign=next_one, credentials=credentials)
    try:
        yield Passwords(Login(url, iam=True, tokens=tokens), signed)
    finally:
        postgres.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(ROLE)))
        file.write_text(before)
        postgres.execute("SELECT pg_reload_conf()")


def take_only(database: TestDatabase, token: str) -> None:
    query = sql.SQL("ALTER ROLE {} PASSWORD {}").format(sql.Identifier(ROLE), sql.Literal(token))
    with psycopg.connect(database.master, autocommit=True) as conn:
        conn.execute(query)


def test_refused_token_is_renewed_within_the_attempt(
    passwords: Passwords, database: TestDatabase, caplog: pytest.LogCaptureFixture
) -> None:
    """Lost if red: the requests that find a token expired; the token, to whoever reads the log."""
    caplog.set_level(logging.DEBUG)
    login, signed = passwords

    async def connect() -> None:
        async with await login.connect() as conn:
            assert await (await conn.execute("SELECT current_user")).fetchone() == (ROLE,)

    take_only(database, "token 1")
    asyncio.run(connect())
    asyncio.run(connect())
    assert signed == ["token 1"]
    take_only(database, "token 2")
    asyncio.run(connect())
    assert signed == ["token 1", "token 2"]
    assert "db_token_renewed" in [getattr(one, "action", "") for one in caplog.records]

    # it is renewed once, and then the database is not to be had
    take_only(database, "another's")

    async def ask_in_vain() -> None:
        db = Database(login, size=1)
        await db.open()
        try:
            with pytest.raises(Unavailable):
                await ask(db)
        finally:
            await db.close()

    asyncio.run(ask_in_vain())
    assert len(signed) == 3
    assert not [one for one in caplog.records if "token 1" in str(vars(one))]


def test_login_goes_on_with_rotated_credentials(
    rds: FakeRds, database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost if red: a process that outlives its access key."""

    async def run() -> None:
        db = Database(Login(rds.url("pal_app", database.name), iam=True), size=1)
        await db.open()
        try:
            assert await ask(db, "SELECT current_user") == "pal_app"
            be_with_key(monkeypatch, "AKIA2")
            rds.keys = {"AKIA2": "secret of AKIA2"}
            await asyncio.to_thread(rds.drop)
            assert await ask(db) == 1
        finally:
            await db.close()

    asyncio.run(run())
    assert rds.logins == ["pal_app"] * 2
    assert rds.refusals == []


@pytest.fixture
def role(rds: FakeRds, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RoleServer]:
    """No key in the environment or in files; where a role may be asked for one."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name)
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
    iam._session_credentials.cache_clear()
    with role_server({"AccessKeyId": "AKIA1", "SecretAccessKey": "secret of AKIA1"}) as made:
        yield made
    iam._session_credentials.cache_clear()


@pytest.mark.parametrize("why", ["none", "refused"])
def test_process_without_credentials_says_unavailable(
    why: str,
    role: RoleServer,
    rds: FakeRds,
    database: TestDatabase,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """Lost if red: a 500 for each request, where a container's role cannot be asked for a while."""
    if why == "none":
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    else:
        (tmp_path / "token").write_text("a token")
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
        monkeypatch.setenv("AWS_ROLE_ARN", "arn:aws:iam::123456789012:role/gateway")
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-west-1")
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", role.url)

    async def run() -> None:
        db = Database(Login(rds.url("pal_app", database.name), iam=True), size=1)
        await db.open()
        with pytest.raises(Unavailable):
            await ask(db)

    asyncio.run(run())


def test_machine_whose_role_is_late_is_asked_again(
    role: RoleServer, rds: FakeRds, database: TestDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lost if red: a gateway that must be restarted since its machine was slow for one request."""
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", role.url)

    async def run() -> None:
        db = Database(Login(rds.url("pal_app", database.name), iam=True), size=1)
        await db.open()
        try:
            with pytest.raises(Unavailable):
                await ask(db)
            role.silent = False
            assert await ask(db) == 1
        finally:
            await db.close()

    asyncio.run(run())


@pytest.mark.parametrize("url", ["postgresql://u@one,two/pal", "postgresql://u@one:x/pal"])
def test_url_of_which_no_token_can_be_made_is_refused(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lost if red: what to mend, when a gateway does not start."""
    monkeypatch.setattr(gateway, "settings", lambda: Settings(database_url=url, database_iam=True))
    monkeypatch.setattr(gateway.telemetry, "configure", lambda _: None)
    assert gateway.main() == 1
    assert capsys.readouterr().err == "PAL_DATABASE_URL cannot be connected to.\n"


# ── whom a token is sent to ──────────────────────────────────────────────────────────────────


class Authority(NamedTuple):
    """A certificate authority of the test's own: its file, and a server's context for a host."""

    file: Path
    context: Callable[[str], ssl.SSLContext]


def make_authority(folder: Path) -> Authority:
    """A fresh one; needs `cryptography`, which is among the gateway's packages."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder.mkdir()
    now = datetime.now(UTC)

    def certificate(
        name: str, key: ec.EllipticCurvePrivateKey, *, ca: bool
    ) -> x509.CertificateBuilder:
        subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(issuer)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(hours=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )

    issuer = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])
    root_key = ec.generate_private_key(ec.SECP256R1())
    root = certificate("authority", root_key, ca=True).sign(root_key, hashes.SHA256())
    file = folder / "ca.pem"
    file.write_bytes(root.public_bytes(serialization.Encoding.PEM))

    def context(host: str) -> ssl.SSLContext:
        key = ec.generate_private_key(ec.SECP256R1())
        names = [
            x509.DNSName(host),
            *([x509.IPAddress(ip_address(host))] if host[0] == "1" else []),
        ]
        made = certificate(host, key, ca=False).add_extension(
            x509.SubjectAlternativeName(names), critical=False
        )
        place = folder / f"{host}.pem"
        place.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
            + made.sign(root_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
        )
        served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        served.load_cert_chain(place)
        return served

    return Authority(file, context)


@pytest.mark.parametrize(
    ("authority", "host", "goes"),
    [
        pytest.param("system", "localhost", True, id="known-authority"),
        pytest.param("system", "other.example", False, id="another-host's"),
        pytest.param("own", "localhost", False, id="unknown-authority"),
        pytest.param(None, "localhost", False, id="no-tls"),
    ],
)
def test_token_goes_to_no_server_but_its_own(
    authority: str | None,
    host: str,
    goes: bool,
    postgres: Cluster,
    database: TestDatabase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Lost if red: a tenant's every row, to whoever answers in the database's place.

    Also that the system's authorities are found at all: psycopg's own OpenSSL finds none.
    """
    be_with_key(monkeypatch, "AKIA1")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    made = {name: make_authority(tmp_path / name) for name in ("system", "own")}
    monkeypatch.setattr("chalicelib.db.login._AUTHORITIES", (str(made["system"].file),))
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    tls = None if authority is None else made[authority].context(host)
    with fake_rds(postgres.socket_dir, tls) as rds:
        rds.keys["AKIA1"] = "secret of AKIA1"
        # no word of TLS in the URL: it is what a login by token gets
        url = rds.url("pal_app", database.name, host="localhost", more="connect_timeout=5")

        async def connect() -> None:
            async with await Login(url, iam=True).connect() as conn:
                await conn.execute("SELECT 1")

        if goes:
            asyncio.run(connect())
            assert rds.logins == ["pal_app"]
            return
        with pytest.raises(psycopg.OperationalError, match=r"certificate|SSL"):
            asyncio.run(connect())
        assert (rds.logins, rds.refusals) == ([], [])
