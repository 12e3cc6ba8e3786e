"""`python -m chalicelib.gateway`: the gateway in a container, on a database that is ready.

PAL_DATABASE_URL is `pal_app`'s login; the migrations have been applied by `scripts/pal migrate`
or the migrate function.
"""

import asyncio
import sys

import psycopg

from app import app
from chalicelib import telemetry
from chalicelib.config import Settings, SettingsError, settings
from chalicelib.db import Login
from chalicelib.db.migrate import pending
from chalicelib.gateway.server import PortTaken, bind, run


def main() -> int:
    """Serve until a signal; 1 with a sentence when it cannot start."""
    try:
        ours = settings()
        telemetry.configure(ours)
        if not ours.database_url:
            raise SettingsError("PAL_DATABASE_URL must be a postgresql:// URL; it is not set.")
        try:
            missing = asyncio.run(pending(Login(ours.database_url, iam=ours.database_iam)))
        except psycopg.Error as exc:  # its text may quote the URL
            raise SettingsError("PAL_DATABASE_URL cannot be connected to.") from exc
        if missing:
            raise SettingsError(f"The database lacks migrations: {', '.join(missing)}.")
        sock = bind(ours.host, ours.port)
    except (SettingsError, PortTaken) as exc:
        sys.stderr.write(f"{exc}\n")
        return 1
    run(app, ours, sock, lambda: _tell(ours))
    return 0


def _tell(ours: Settings) -> None:
    sys.stdout.write(f"ready http://{ours.host}:{ours.port}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
