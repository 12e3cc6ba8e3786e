"""How connections are made: in one way for all of them, with a password or with an IAM token.

psycopg's wheel looks for certificate authorities in a folder of its own that no machine has, so
`sslrootcert=system` would trust nobody. Here it names the file that the system does have.
"""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from chalicelib.db.connections import Tx
from chalicelib.db.iam import Tokens

_log = logging.getLogger(__name__)

CONNECTION: Final[dict[str, Any]] = {
    "autocommit": True,
    # a named statement made on one backend does not exist on the next one a pooler hands out
    "prepare_threshold": None,
    "connect_timeout": 5,
    # a server that is gone without a word is noticed within 10 s, not after 15 minutes
    "tcp_user_timeout": 10_000,
    "keepalives_idle": 30,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}
"""How every connection of this project is made, scripts and migrations included."""

# Amazon Linux, Debian, Alpine and macOS
_AUTHORITIES: Final = (
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/ssl/cert.pem",
)


class Login:
    """One login to one database.

    With `iam` its password is a token, and TLS with a checked certificate is what it gets unless
    the URL says otherwise: a token is sent as it is.
    """

    def __init__(
        self, url: str, *, iam: bool = False, tokens: Callable[[str, int, str], Tokens] = Tokens
    ) -> None:
        parts = conninfo_to_dict(url) if iam or "sslrootcert" in url else {}
        changes: dict[str, str] = {}
        self._tokens: Tokens | None = None
        if iam:
            host, port = str(parts.get("host") or ""), str(parts.get("port") or 5432)
            if not port.isdecimal() or "," in host:
                raise psycopg.ProgrammingError("a token is for one host and one port")
            self._tokens = tokens(host, int(port), str(parts.get("user") or ""))
            changes = {"sslmode": "verify-full", "sslrootcert": "system"}
            changes = {name: value for name, value in changes.items() if name not in parts}
        if "system" in (changes.get("sslrootcert"), parts.get("sslrootcert")):
            changes["sslrootcert"] = _authorities()
        self._url = make_conninfo(url, **changes) if changes else url

    async def connect(self) -> Tx:
        """A new connection; a token that is refused is signed anew and tried once more."""
        if self._tokens is None:
            return await psycopg.AsyncConnection.connect(self._url, **CONNECTION)
        token = await self._tokens.get()
        try:
            return await psycopg.AsyncConnection.connect(self._url, password=token, **CONNECTION)
        except psycopg.OperationalError as exc:
            if not was_refused(exc):
                raise
            newer = await self._tokens.get(instead_of=token)
            if newer == token:
                raise
        _log.info("token renewed", extra={"action": "db_token_renewed"})
        return await psycopg.AsyncConnection.connect(self._url, password=newer, **CONNECTION)


def was_refused(exc: psycopg.OperationalError) -> bool:
    """Whether a connection failed once the server had been given a password."""
    # there is no SQLSTATE yet, and the words are the server's
    return exc.pgconn is not None and exc.pgconn.used_password


def as_login(login: Login | str) -> Login:
    """The login of a URL, which then holds a password if it needs one."""
    return Login(login) if isinstance(login, str) else login


def _authorities() -> str:
    told = os.environ.get("SSL_CERT_FILE")
    found = (path for path in _AUTHORITIES if Path(path).is_file())
    return told or next(found, _AUTHORITIES[0])
