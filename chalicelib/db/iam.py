"""IAM tokens: passwords of 15 minutes that are signed here, by AWS's Signature Version 4.

A token is a presigned URL without its scheme; making one asks nobody. botocore makes the same, byte
for byte (a test compares them), and its signer alone would cost a cold start 45 ms of import. Nor
is it needed for credentials on Lambda, which puts them into the environment; elsewhere botocore
finds and renews them.
"""

import asyncio
import hashlib
import hmac
import os
import re
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import cache
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urlencode

import psycopg

SECONDS_VALID: Final = 900
SECONDS_USED: Final = 600
"""A token is replaced well before it expires: its server's clock is another one."""

_HOST: Final = re.compile(r"\.([a-z]{2}(?:-[a-z]+)+-\d)\.rds\.amazonaws\.com(?:\.cn)?")
_NO_BODY: Final = hashlib.sha256(b"").hexdigest()


class Credentials(NamedTuple):
    """An access key; `session` is empty where it is no temporary one."""

    key: str
    secret: str
    session: str = ""

    def __repr__(self) -> str:
        return f"Credentials({self.key})"


Sign = Callable[[str, int, str, datetime, Credentials], str]
Find = Callable[[], Awaitable[Credentials]]


def sign(host: str, port: int, user: str, at: datetime, credentials: Credentials) -> str:
    """The token of this user for this server, valid for 15 minutes from `at`."""
    region = _region_of(host)
    moment = at.strftime("%Y%m%dT%H%M%SZ")
    scope = f"{moment[:8]}/{region}/rds-db/aws4_request"
    named = {
        "Action": "connect",
        "DBUser": user,
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{credentials.key}/{scope}",
        "X-Amz-Date": moment,
        "X-Amz-Expires": str(SECONDS_VALID),
        "X-Amz-SignedHeaders": "host",
    }
    if credentials.session:
        named["X-Amz-Security-Token"] = credentials.session
    query = urlencode(sorted(named.items()), quote_via=quote, safe="-_.~")
    asked = f"GET\n/\n{query}\nhost:{host}:{port}\n\nhost\n{_NO_BODY}"
    text = "\n".join(
        ("AWS4-HMAC-SHA256", moment, scope, hashlib.sha256(asked.encode()).hexdigest())
    )
    key = f"AWS4{credentials.secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    return f"{host}:{port}/?{query}&X-Amz-Signature={signature}"


async def find_credentials() -> Credentials:
    """Those of this process, as they are now; raises OperationalError where there are none."""
    environ = os.environ
    key, secret = environ.get("AWS_ACCESS_KEY_ID", ""), environ.get("AWS_SECRET_ACCESS_KEY", "")
    if key and secret:
        return Credentials(key, secret, environ.get("AWS_SESSION_TOKEN", ""))
    # from a container's or a machine's role, which may have to be asked
    return await asyncio.to_thread(_ask_botocore)


class Tokens:
    """The token of one user of one server, signed anew before it expires.

    The clock is the wall's: a frozen process's own clock stands still, and its tokens age.
    """

    def __init__(
        self,
        host: str,
        port: int,
        user: str,
        *,
        sign: Sign = sign,
        credentials: Find = find_credentials,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._for = (host, port, user)
        self._sign, self._credentials, self._clock = sign, credentials, clock
        self._kept = ""
        self._until = 0.0
        self._signed_with: Credentials | None = None

    async def get(self, *, instead_of: str = "") -> str:
        """A token to log in with, another one than that which was refused if there can be one."""
        with_these = await self._credentials()
        now = self._clock()
        if (
            self._kept == instead_of
            or not self._until - SECONDS_USED <= now < self._until
            or self._signed_with != with_these
        ):
            at = datetime.fromtimestamp(now, UTC)
            self._kept = self._sign(*self._for, at, with_these)
            self._until, self._signed_with = now + SECONDS_USED, with_these
        return self._kept


def _region_of(host: str) -> str:
    if found := _HOST.search(host):
        return found[1]
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if not region:
        raise psycopg.OperationalError("AWS_REGION is not set, and the database's host names none")
    return region


def _ask_botocore() -> Credentials:
    try:
        frozen = _session_credentials().get_frozen_credentials()
    # botocore lets through whatever its ways to credentials raise: STS's refusals, a RuntimeError
    except Exception as exc:
        raise psycopg.OperationalError("AWS gives no credentials") from exc
    return Credentials(frozen.access_key, frozen.secret_key, frozen.token or "")


@cache
def _session_credentials() -> Any:
    """An object that renews what it holds; raises where there is none, which may be for now."""
    from botocore.exceptions import NoCredentialsError
    from botocore.session import Session

    found = Session().get_credentials()
    if found is None:  # also of a machine whose metadata service did not answer in time
        raise NoCredentialsError
    return found
