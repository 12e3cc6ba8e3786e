"""Migrations: numbered SQL files, each applied exactly once, and what goes before and after them.

A file is `NNNN_name.sql`. What was applied is in `pal.schema_migrations` with a checksum; a file
that changed after it was applied is refused. Each file is one transaction, under a lock of that
transaction: processes that start together wait for each other, a killed one leaves nothing behind.
An older version runs beside it and after it, so from 0008 on a file only adds, and what takes no
time on a table of any size; what takes away is a file of its own, `-- contract: <why>` (a test
reads the rule off each file). One that keeps a table from others for 5 s is cancelled.
The bootstrap comes before them. What depends on the server comes after them, and each time, since
a server may learn it later.
"""

import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final, LiteralString

import psycopg

from chalicelib.db.lock_watch import LONGEST, LockedTooLong, no_long_locks
from chalicelib.db.login import Login, as_login

FOLDER: Final = Path(__file__).with_name("migrations")

_AFTERWARDS: Final = ("vectors.sql",)

_FILE: Final = re.compile(r"(\d{4})_(\w+)\.sql")

# Any constant does; this one is "pal" in ASCII. The wait for the others has no limit, since one of
# them may be at a long migration; the migration itself keeps the role's limit.
_TAKE_TURNS: Final = """
SET LOCAL lock_timeout = 0;
SELECT pg_advisory_xact_lock(7364972);
SET LOCAL lock_timeout TO DEFAULT;
"""


class MigrationError(Exception):
    """The database and the files do not fit; the message is one sentence for a person."""


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One file: its number, name, text and the SHA-256 of the text in hex."""

    version: int
    name: str
    text: LiteralString
    checksum: str

    @property
    def full_name(self) -> str:
        """As its file is called, `0001_sessions`."""
        return f"{self.version:04}_{self.name}"


def read_migrations(folder: Path = FOLDER) -> list[Migration]:
    """The files in order; MigrationError when a number is missing or stands twice."""
    found = []
    for path in sorted(folder.glob("*.sql")):
        parts = _FILE.fullmatch(path.name)
        if parts is None:
            raise MigrationError(f"The migration {path.name} is not named 0001_like_this.sql.")
        text = path.read_text(encoding="utf-8")
        checksum = hashlib.sha256(text.encode()).hexdigest()
        found.append(Migration(version=int(parts[1]), name=parts[2], text=text, checksum=checksum))
    for number, one in enumerate(found, start=1):
        if one.version != number:
            raise MigrationError(f"Migration {one.full_name} stands where {number:04} should.")
    return found


async def bootstrap(master: Login | str) -> None:
    """Make roles, schema and grants as the master user. Safe to run twice, and at once."""
    async with await as_login(master).connect() as conn, taking_turns(conn):
        await conn.execute(_read("bootstrap.sql"))


async def migrate(
    owner: Login | str, folder: Path = FOLDER, *, longest_lock: float = LONGEST
) -> list[str]:
    """Apply what is missing as `pal_owner`; the names applied by this call.

    Safe to run from several processes at once and through a transaction pooler. Raises
    MigrationError when an applied file has changed or one fails, which then leaves nothing behind;
    one fails, too, that keeps a table from others for longer than `longest_lock` seconds.
    A database that is ahead of the files is fine: an older process may still run while a newer one
    starts.
    """
    files = read_migrations(folder)
    applied: list[str] = []
    doing = "The migrations"
    try:
        login = as_login(owner)
        async with await login.connect() as conn:
            while True:
                doing = "The migrations"
                async with taking_turns(conn):
                    missing = await _first_missing(conn, files)
                    if missing is None:
                        for doing in _AFTERWARDS:
                            await conn.execute(_read(doing))
                        return applied
                    doing = f"Migration {missing.full_name}"
                    async with no_long_locks(login, conn, longest=longest_lock):
                        await conn.execute(missing.text)
                    await conn.execute(
                        "INSERT INTO pal.schema_migrations (version, name, checksum)"
                        " VALUES (%s, %s, %s)",
                        (missing.version, missing.name, missing.checksum),
                    )
                applied.append(missing.full_name)
    except LockedTooLong as exc:
        raise MigrationError(
            f"{doing} could not be applied: it kept {exc} from others for {longest_lock:g} s."
        ) from exc
    except psycopg.Error as exc:
        raise MigrationError(f"{doing} could not be applied: {_reason(exc)}.") from exc


async def pending(login: Login | str) -> list[str]:
    """The names of migrations that this database lacks; any login may ask."""
    async with await as_login(login).connect() as conn:
        try:
            cur = await conn.execute("SELECT version FROM pal.schema_migrations")
            done = {version for (version,) in await cur.fetchall()}
        except (
            psycopg.errors.UndefinedTable,
            psycopg.errors.InsufficientPrivilege,  # what pal_app may see, migrations grant
        ):
            done = set()
    return [one.full_name for one in read_migrations() if one.version not in done]


@asynccontextmanager
async def taking_turns(conn: psycopg.AsyncConnection) -> AsyncIterator[None]:
    """A transaction that waits for every other one of its kind on this database."""
    async with conn.transaction():
        await conn.execute(_TAKE_TURNS)
        yield


async def _first_missing(conn: psycopg.AsyncConnection, files: list[Migration]) -> Migration | None:
    row = await (await conn.execute("SELECT current_user, to_regnamespace('pal')")).fetchone()
    who, schema = row or ("", None)
    if who != "pal_owner":
        # what another login makes, pal_owner cannot change, and a superuser's is free of policies
        raise MigrationError(f"Migrations are applied as pal_owner, not as {who}.")
    if schema is None:
        raise MigrationError(
            "There is no schema pal yet: run `scripts/pal migrate` once with PAL_DATABASE_URL as"
            " the database's master."
        )
    await conn.execute(
        "CREATE TABLE IF NOT EXISTS pal.schema_migrations (version integer PRIMARY KEY,"
        " name text NOT NULL, checksum text NOT NULL, applied_at timestamptz DEFAULT now())"
    )
    await conn.execute("GRANT USAGE ON SCHEMA pal TO pal_app, pal_system")
    await conn.execute("GRANT SELECT ON pal.schema_migrations TO pal_app")
    cur = await conn.execute("SELECT version, checksum FROM pal.schema_migrations")
    checksums: dict[int, str] = dict(await cur.fetchall())
    for one in files:
        if one.version not in checksums:
            return one
        if checksums[one.version] != one.checksum:
            raise MigrationError(
                f"Migration {one.full_name} was changed after it was applied;"
                " put the file back and write a new one."
            )
    return None


def _read(file: str) -> LiteralString:
    text = Path(__file__).with_name(file).read_text(encoding="utf-8")
    return text


def _reason(exc: psycopg.Error) -> str:
    return exc.diag.message_primary or "the database cannot be connected to"
