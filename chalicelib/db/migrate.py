"""Migrations: numbered SQL files, each applied exactly once, and the bootstrap before them.

A file is `NNNN_name.sql`. What was applied is in `pal.schema_migrations` with a checksum; a file
that changed after it was applied is refused. Each file is one transaction, under a lock of that
transaction: processes that start together wait for each other, a killed one leaves nothing behind.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import LiteralString

import psycopg

from chalicelib.db.pool import CONNECTION

FOLDER = Path(__file__).with_name("migrations")

# any constant does; this one is "pal" in ASCII
_LOCK = 0x70616C


class MigrationError(Exception):
    """The database and the files do not fit; the message is one sentence for a person."""


@dataclass(frozen=True, kw_only=True)
class Migration:
    """One file: its number, name, text and the SHA-256 of the text in hex."""

    version: int
    name: str
    text: LiteralString
    checksum: str


def read_migrations(folder: Path = FOLDER) -> list[Migration]:
    """The files in order; MigrationError when a number is missing or stands twice."""
    found = []
    for path in sorted(folder.glob("*.sql")):
        number, _, name = path.stem.partition("_")
        text = path.read_text()
        found.append(
            Migration(
                version=int(number),
                name=name,
                text=text,
                checksum=hashlib.sha256(text.encode()).hexdigest(),
            )
        )
    if [one.version for one in found] != list(range(1, len(found) + 1)):
        raise MigrationError("The migration files are not numbered 1, 2, 3 and so on.")
    return found


async def bootstrap(master_url: str) -> None:
    """Make roles, schema and grants as the master user. Safe to run twice."""
    text = Path(__file__).with_name("bootstrap.sql").read_text()
    async with await psycopg.AsyncConnection.connect(master_url, **CONNECTION) as conn:
        await conn.execute(text)


async def migrate(owner_url: str, folder: Path = FOLDER) -> list[str]:
    """Apply what is missing as `pal_owner`; the names applied by this call.

    Safe to run from several processes at once and through a transaction pooler. Raises
    MigrationError when an applied file has changed. A database that is ahead of the files is fine:
    an older process may still run while a newer one starts.
    """
    files = read_migrations(folder)
    applied: list[str] = []
    async with await psycopg.AsyncConnection.connect(owner_url, **CONNECTION) as conn:
        while True:
            async with conn.transaction():
                missing = await _first_missing(conn, files)
                if missing is None:
                    return applied
                await conn.execute(missing.text)
                await conn.execute(
                    "INSERT INTO pal.schema_migrations (version, name, checksum)"
                    " VALUES (%s, %s, %s)",
                    (missing.version, missing.name, missing.checksum),
                )
            applied.append(f"{missing.version:04}_{missing.name}")


async def pending(url: str) -> list[str]:
    """The names of migrations that this database lacks; any login may ask."""
    async with await psycopg.AsyncConnection.connect(url, **CONNECTION) as conn:
        cur = await conn.execute("SELECT to_regclass('pal.schema_migrations') IS NOT NULL")
        row = await cur.fetchone()
        done = set()
        if row and row[0]:
            rows = await (await conn.execute("SELECT name FROM pal.schema_migrations")).fetchall()
            done = {name for (name,) in rows}
    return [one.name for one in read_migrations() if one.name not in done]


async def _first_missing(conn: psycopg.AsyncConnection, files: list[Migration]) -> Migration | None:
    await conn.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
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
                f"Migration {one.version:04}_{one.name} was changed after it was applied;"
                " put the file back and write a new one."
            )
    return None
