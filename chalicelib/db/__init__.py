"""Postgres: connections, the tenant transaction, migrations."""

from chalicelib.db.connections import Tx
from chalicelib.db.login import Login
from chalicelib.db.pool import Database, Row
from chalicelib.db.queries import Queries, load_queries

__all__ = ["Database", "Login", "Queries", "Row", "Tx", "load_queries"]
