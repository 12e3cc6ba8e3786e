"""A real Postgres for the suite, a PgBouncer before it, and a fresh database per test."""

import asyncio
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString
from urllib.parse import parse_qs, urlsplit

import psycopg
from psycopg import sql

from chalicelib.db.migrate import bootstrap, migrate
from chalicelib.gateway.postgres import embedded

TEMPLATE = "pal_template"

_DEBIANS_15 = Path("/usr/lib/postgresql/15/bin")
OLDEST = _DEBIANS_15 if _DEBIANS_15.exists() else None
"""The programs of a Postgres 15, None where there is none."""


@dataclass(frozen=True, kw_only=True)
class TestDatabase:
    """One database: URLs of its logins. `app` may lead through a pooler, the others never do."""

    __test__ = False  # pytest takes the name for a test's

    name: str
    app: str
    direct: str
    owner: str
    master: str

    def rows(self, query: LiteralString, *values: object) -> list[tuple]:
        """Run SQL as the superuser, who sees everything."""
        with psycopg.connect(self.master, autocommit=True) as conn:
            cur = conn.execute(query, values)
            return cur.fetchall() if cur.description else []

    def one(self, query: LiteralString, *values: object) -> object:
        """The single value of a query, as the superuser."""
        return self.rows(query, *values)[0][0]


class Cluster:
    """The suite's server: `url` names its superuser, `pooler` (host, port) a PgBouncer or None."""

    def __init__(self, url: str, pooler: tuple[str, int] | None) -> None:
        self.url = url
        self.pooler = pooler
        self.socket_dir = parse_qs(urlsplit(url).query)["host"][0]
        self._count = 0

    def as_role(self, role: str, database: str) -> str:
        """A direct URL of this role in this database."""
        return f"postgresql://{role}@/{database}?host={self.socket_dir}"

    def pooled(self, role: str, database: str) -> str:
        """A URL through the pooler."""
        assert self.pooler is not None
        host, port = self.pooler
        return f"postgresql://{role}@{host}:{port}/{database}"

    def execute(self, *statements: sql.Composable | LiteralString) -> None:
        """Run statements as the superuser, outside of a transaction."""
        with psycopg.connect(self.url, autocommit=True) as conn:
            for statement in statements:
                conn.execute(statement)

    def create(self, template: str = TEMPLATE) -> TestDatabase:
        """A fresh database, a copy of the migrated template unless told otherwise."""
        self._count += 1
        name = f"pal_test_{self._count}"
        self.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(
                sql.Identifier(name), sql.Identifier(template)
            )
        )
        return self.named(name)

    def named(self, name: str) -> TestDatabase:
        """The URLs of a database that exists."""
        direct = self.as_role("pal_app", name)
        return TestDatabase(
            name=name,
            app=self.pooled("pal_app", name) if self.pooler else direct,
            direct=direct,
            owner=self.as_role("pal_owner", name),
            master=self.as_role("postgres", name),
        )

    def drop(self, database: TestDatabase) -> None:
        """Drop a database, whoever is still connected."""
        self.execute(
            sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(database.name))
        )


def fast_folder() -> str | None:
    """Where a database is made in 15 ms and not in 400: in memory, if there is plenty of it."""
    memory = Path("/dev/shm")
    roomy = memory.is_dir() and shutil.disk_usage(memory).free > 4 << 30
    return str(memory) if roomy and os.access(memory, os.W_OK) else None


@contextmanager
def cluster(folder: Path, *, pooled: bool) -> Iterator[Cluster]:
    """The server with its migrated template, and the pooler if asked for."""
    with embedded(folder) as url:
        plain = url.replace("/palimpsest?", "/postgres?")
        made = Cluster(plain, None)
        made.execute(
            # tests need no durability, and a copied database is made faster without it
            "ALTER SYSTEM SET fsync = off",
            "ALTER SYSTEM SET synchronous_commit = off",
            "ALTER SYSTEM SET full_page_writes = off",
            "SELECT pg_reload_conf()",
            sql.SQL("DROP DATABASE IF EXISTS {}").format(sql.Identifier(TEMPLATE)),
            sql.SQL("CREATE DATABASE {}").format(sql.Identifier(TEMPLATE)),
        )
        asyncio.run(bootstrap(made.as_role("postgres", TEMPLATE)))
        asyncio.run(migrate(made.as_role("pal_owner", TEMPLATE)))
        if not pooled:
            yield made
            return
        with pgbouncer(folder, made.socket_dir) as address:
            made.pooler = address
            yield made


@contextmanager
def oldest(folder: Path) -> Iterator[str]:
    """A Postgres 15, the oldest that is supported, with passwords: its superuser's URL."""
    assert OLDEST is not None
    folder.chmod(0o777)
    user = "postgres" if os.geteuid() == 0 else None
    secret = folder / "secret"
    secret.write_text("a secret: 50%")
    data, port = folder / "data", free_port()
    subprocess.run(
        [
            OLDEST / "initdb",
            "-D",
            data,
            "-U",
            "postgres",
            "-A",
            "scram-sha-256",
            "--pwfile",
            secret,
        ],
        user=user,
        cwd=folder,
        stdout=subprocess.DEVNULL,
        check=True,
    )
    options = f"-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={folder}"
    control = [OLDEST / "pg_ctl", "-D", data, "-w", "-l", folder / "log"]
    quiet = {"user": user, "cwd": folder, "stdout": subprocess.DEVNULL, "check": True}
    subprocess.run([*control, "-o", options, "start"], **quiet)  # type: ignore[call-overload]
    try:
        yield f"postgresql://postgres:a%20secret%3A%2050%25@127.0.0.1:{port}/postgres"
    finally:
        subprocess.run([*control, "-m", "fast", "stop"], **quiet)  # type: ignore[call-overload]


def find_pgbouncer() -> str | None:
    """The program, which Debian puts outside of an ordinary user's path."""
    return shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")


@contextmanager
def pgbouncer(folder: Path, socket_dir: str) -> Iterator[tuple[str, int]]:
    """A transaction-pooling PgBouncer over every database of the server: (host, port)."""
    program = find_pgbouncer()
    assert program is not None
    home = folder / "pgbouncer"
    home.mkdir()
    port = free_port()
    (home / "users.txt").write_text('"pal_app" ""\n"pal_owner" ""\n')
    lines = [
        "[databases]",
        f"* = host={socket_dir} port=5432",
        "[pgbouncer]",
        "listen_addr = 127.0.0.1",
        f"listen_port = {port}",
        "unix_socket_dir =",
        "auth_type = trust",
        f"auth_file = {home}/users.txt",
        "pool_mode = transaction",
        "default_pool_size = 4",
        "max_client_conn = 500",
        "server_idle_timeout = 5",
        f"logfile = {home}/log",
    ]
    if _tracks_prepared(program):
        # a named statement is then unknown on the next backend, as on a proxy without tracking
        lines.append("max_prepared_statements = 0")
    (home / "pgbouncer.ini").write_text("\n".join(lines) + "\n")
    command = [program, str(home / "pgbouncer.ini")]
    user = None
    if os.geteuid() == 0:  # it refuses to run as root; the server's own user reaches its socket
        user = "embedded_postgres"
        home.chmod(0o777)
        for parent in home.parents:
            if parent != Path("/"):
                parent.chmod(parent.stat().st_mode | 0o055)
    process = subprocess.Popen(
        command, user=user, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        wait_for_port(port, process)
        yield "127.0.0.1", port
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(10)


def _tracks_prepared(program: str) -> bool:
    shown = subprocess.run([program, "--version"], capture_output=True, text=True, check=True)
    version = shown.stdout.split()[1].split(".")
    return (int(version[0]), int(version[1])) >= (1, 21)


def free_port() -> int:
    """A port that nobody listens on at this moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def wait_for_port(port: int, process: subprocess.Popen[bytes], seconds: float = 10) -> None:
    """Until someone accepts connections on the port."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        assert process.poll() is None, "the server ended before it listened"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)
    raise TimeoutError(f"no one listens on {port}")
