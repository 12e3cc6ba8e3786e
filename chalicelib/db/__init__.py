"""Postgres: connections, the tenant transaction, migrations."""

from chalicelib.db.pool import Database, Row, Tx
from chalicelib.db.queries import Queries, load_queries

__all__ = ["Database", "Queries", "Row", "Tx", "load_queries"]
