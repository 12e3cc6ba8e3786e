"""What a migration may do to tables that are in use: the expand and contract rule, read off it.

An old version of the code runs beside a migration and after it. So a file only adds, and adds only
what takes no time on a table of any size. What takes away is a file of its own, begun by a line
`-- contract: <why nothing uses it any more>`.
"""

from typing import LiteralString

import psycopg

# a rewrite gives a table another file; an index is built under a lock that stops its writers
TABLES: LiteralString = """
SELECT c.oid, c.relname, c.relfilenode FROM pg_class c
WHERE c.relnamespace = 'pal'::regnamespace AND c.relkind IN ('r', 'p')
"""
COLUMNS: LiteralString = """
SELECT a.attrelid, a.attnum, a.attname, a.atttypid, a.attnotnull FROM pg_attribute a
JOIN pg_class c ON c.oid = a.attrelid
WHERE c.relnamespace = 'pal'::regnamespace AND c.relkind IN ('r', 'p')
  AND a.attnum > 0 AND NOT a.attisdropped
"""
# an index of a constraint is told by the constraint
INDEXES: LiteralString = """
SELECT i.indexrelid, i.indrelid, i.indexrelid::regclass::text FROM pg_index i
JOIN pg_class c ON c.oid = i.indrelid WHERE c.relnamespace = 'pal'::regnamespace
"""
# a constraint of a new column with a constant default is checked without a scan, but it is rare
CONSTRAINTS: LiteralString = """
SELECT o.oid, o.conrelid, o.conname FROM pg_constraint o
WHERE o.connamespace = 'pal'::regnamespace AND o.convalidated AND o.contype <> 'n'
"""


def faults(conn: psycopg.Connection, text: LiteralString) -> list[str]:
    """What this file does that it may not, applied here and taken back."""
    contracts = text.startswith("-- contract: ")
    with conn.transaction(force_rollback=True):
        tables = {oid: (name, file) for oid, name, file in conn.execute(TABLES)}
        columns = {tuple(row[:2]): row[2:] for row in conn.execute(COLUMNS)}
        indexes = {row[0] for row in conn.execute(INDEXES)}
        constraints = {row[0] for row in conn.execute(CONSTRAINTS)}
        conn.execute(text)
        now = {oid: (name, file) for oid, name, file in conn.execute(TABLES)}
        found = []
        for oid, (name, file) in tables.items():
            kept = now.get(oid)
            if kept is None:
                found += [] if contracts else [f"drops {name}"]
            elif kept[0] != name:
                found.append(f"renames {name}")
            elif kept[1] != file:
                found.append(f"rewrites {name}")
        new = {tuple(row[:2]): row[2:] for row in conn.execute(COLUMNS)}
        for (oid, number), (name, kind, required) in columns.items():
            where = f"{tables[oid][0]}.{name}"
            if oid not in now:
                continue
            if (oid, number) not in new:
                found += [] if contracts else [f"drops {where}"]
            elif new[oid, number][0] != name:
                found.append(f"renames {where}")
            elif new[oid, number][1] != kind:
                found.append(f"changes the type of {where}")
            elif new[oid, number][2] and not required:
                found.append(f"scans {where} for nulls")
        for oid, table, name in conn.execute(INDEXES):
            if oid not in indexes and table in tables:
                found.append(f"builds {name} on a table in use")
        for oid, table, name in conn.execute(CONSTRAINTS):
            if oid not in constraints and table in tables:
                found.append(f"checks {name} on a table in use")
    return found
