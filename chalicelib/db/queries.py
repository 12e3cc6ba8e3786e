"""Named queries: SQL lives in a `queries.sql` beside its store and is loaded by name.

A query starts at a line `-- name --`; the comment lines under it say why it is the way it is.
"""

import re
from pathlib import Path
from typing import LiteralString

_NAME = re.compile(r"^-- (\w+) --$", re.MULTILINE)

Queries = dict[str, LiteralString]


def load_queries(beside: str, file: str = "queries.sql") -> Queries:
    """The named queries of the `.sql` file that lies beside the module `beside` (its `__file__`).

    Comments are left out: they would travel with every call, and a statement of more than 16 KB
    pins a connection of RDS Proxy.
    """
    text = Path(beside).with_name(file).read_text(encoding="utf-8")
    parts = _NAME.split(text)[1:]
    names, bodies = parts[::2], parts[1::2]
    if len(set(names)) != len(names):
        raise ValueError(f"{file} beside {beside} names a query twice")
    return {name: _strip(body) for name, body in zip(names, bodies, strict=True)}


def _strip(body: str) -> LiteralString:
    lines = (line.strip() for line in body.splitlines())
    # lines stay lines: a comment at the end of one must not take the rest of the query along
    kept = "\n".join(line for line in lines if line and not line.startswith("--"))
    return kept  # read from our own package, never from input
