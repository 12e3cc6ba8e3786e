"""RDS at the wire: takes passwords and IAM tokens, then hands the connection to a real Postgres.

Tokens are checked as RDS checks them, with botocore's signer: for this user, at this address, made
with a key that is known, not expired. It can fail as RDS and its proxy do: drop connections, expire
what it has seen, take no new ones.
"""

import asyncio
import ssl
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from urllib.parse import parse_qsl, urlsplit

from botocore.auth import SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as Key

from tests.support.stack import Loop
from tests.support.waiting import until

SSL_REQUEST, GSS_REQUEST = 80877103, 80877104


class FakeRds:
    """A server on 127.0.0.1 before the Postgres of `socket_dir`, which trusts whoever comes.

    `keys` are the access keys that it knows, each with its secret; `passwords` the users who have
    one, and need no token.
    """

    def __init__(self, socket_dir: str, tls: ssl.SSLContext | None = None) -> None:
        self.keys: dict[str, str] = {}
        self.passwords: dict[str, str] = {}
        self.logins: list[str] = []
        self.refusals: list[str] = []
        self._socket, self._tls = f"{socket_dir}/.s.PGSQL.5432", tls
        self._seen: set[str] = set()
        self._expired: set[str] = set()
        self._writers: set[asyncio.StreamWriter] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._loop = Loop()
        self._server = self._loop.run(asyncio.start_server(self._accept, "127.0.0.1", 0))
        self.port = int(self._server.sockets[0].getsockname()[1])

    def url(self, role: str, database: str, *, host: str = "127.0.0.1", more: str = "") -> str:
        """This role's way to this database, without a password."""
        return f"postgresql://{role}@{host}:{self.port}/{database}?{more or 'sslmode=disable'}"

    def drop(self) -> None:
        """Close every connection, as after a failover or a long silence."""

        async def close() -> None:
            for writer in self._writers:
                writer.close()

        self._loop.run(close())

    def expire(self) -> None:
        """Let the tokens that were used expire; returns in a second that has seen none of them."""
        self._expired |= self._seen
        last = int(time.time())
        until(lambda: int(time.time()) > last)

    def close(self) -> None:
        """Be gone, with every connection."""
        self.drop()
        self._loop.loop.call_soon_threadsafe(self._server.close)
        self._loop.close()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = self._loop.loop.create_task(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._talk(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass  # either end is gone, and then the other goes as well
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        start = await _read_start(reader)
        while (code := struct.unpack("!I", start[4:8])[0]) in (SSL_REQUEST, GSS_REQUEST):
            secure = code == SSL_REQUEST and self._tls is not None
            writer.write(b"S" if secure else b"N")
            if secure:
                await writer.start_tls(self._tls)  # type: ignore[arg-type]
            start = await _read_start(reader)
        words = start[8:].rstrip(b"\0").decode().split("\0")
        user = dict(zip(words[::2], words[1::2], strict=True))["user"]
        writer.write(b"R" + struct.pack("!II", 8, 3))  # its password, as it is
        _, size = struct.unpack("!cI", await reader.readexactly(5))
        told = (await reader.readexactly(size - 4)).rstrip(b"\0").decode()
        if fault := self._fault_of(user, told):
            self.refusals.append(fault)
            said = f'SFATAL\0VFATAL\0C28P01\0MPAM authentication failed for user "{user}"\0\0'
            writer.write(b"E" + struct.pack("!I", len(said) + 4) + said.encode())
            return
        self.logins.append(user)
        back, forth = await asyncio.open_unix_connection(self._socket)
        try:
            forth.write(start)
            async with asyncio.TaskGroup() as group:
                group.create_task(_pump(reader, forth))
                group.create_task(_pump(back, writer))
        except* OSError:
            pass
        finally:
            forth.close()

    def _fault_of(self, user: str, told: str) -> str:
        if user in self.passwords:
            return "" if told == self.passwords[user] else "password"
        parts = urlsplit(f"https://{told}")
        named = dict(parse_qsl(parts.query))
        if (named.get("Action"), named.get("DBUser")) != ("connect", user):
            return "no token of this user"
        if parts.port != self.port:
            return "for another server"
        self._seen.add(told)
        made = datetime.strptime(named["X-Amz-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
        if told in self._expired or time.time() > made.timestamp() + int(named["X-Amz-Expires"]):
            return "expired"
        key, _, region, *_ = named["X-Amz-Credential"].split("/")
        if key not in self.keys:
            return "unknown key"
        return "" if signed_by(told, key, self.keys[key], region) else "signature"


def signed_by(token: str, key: str, secret: str, region: str) -> bool:
    """Whether this access key has signed the token, by botocore's account of signatures."""
    text, _, signature = token.rpartition("&X-Amz-Signature=")
    request = AWSRequest(method="GET", url=f"https://{text}")
    signer = SigV4QueryAuth(Key(key, secret), "rds-db", region)
    request.context["timestamp"] = dict(parse_qsl(urlsplit(f"https://{text}").query))["X-Amz-Date"]
    asked = signer.string_to_sign(request, signer.canonical_request(request))
    return bool(signer.signature(asked, request) == signature)


async def _read_start(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack("!I", head)[0] - 4)


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
    raise ConnectionResetError


@contextmanager
def fake_rds(socket_dir: str, tls: ssl.SSLContext | None = None) -> Iterator[FakeRds]:
    """A fake, gone at the end."""
    made = FakeRds(socket_dir, tls)
    try:
        yield made
    finally:
        made.close()
