"""The side of Bedrock that blocks: boto3's client, a thread a call, botocore's exceptions as ours.

botocore reads with blocking sockets. Each call has a thread of its own while it lasts, at most
`_CALLS` of an adapter; what it reads crosses to the loop as it comes. The threads are daemons: none
keeps a process from ending. To leave a call early its socket is shut, which wakes its thread in
whatever read it waits. botocore gives no socket away, so its connections are subclassed.
"""

import asyncio
import logging
import os
import re
import socket
import threading
from collections.abc import AsyncGenerator
from contextlib import closing, suppress
from functools import cache
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from chalicelib.config import settings
from chalicelib.errors import (
    ProviderDenied,
    ProviderError,
    ProviderUnavailable,
    ProviderUnsupported,
)
from chalicelib.providers.base import ProviderOptions
from chalicelib.providers.bedrock_reader import refusal
from chalicelib.providers.http import idempotency_key

_log = logging.getLogger(__name__)

Operation = Literal["Converse", "ConverseStream", "InvokeModel"]

# threads of one adapter; more calls wait for a place
_CALLS: Final = 100
# how long an answer may take is the chain's to say; this ends what the chain has forgotten
_READ_TIMEOUT: Final = 1800.0
# how long a connection is given to end after an answer that is whole, so as to be used again
_LINGER: Final = 0.5

# where a tenant's key may go: names that AWS alone can point at an address
_AWS: Final = re.compile(
    r"bedrock-runtime(-fips)?\.[a-z0-9-]+\.(amazonaws\.com|amazonaws\.com\.cn|api\.aws)"
)

_here = threading.local()


class BedrockClient:
    """Makes the calls of one adapter. The first of them, in its thread, makes boto3's client."""

    def __init__(self, options: ProviderOptions) -> None:
        self._options = options
        self._told = f"{options.name}:{options.model}"
        self._slots = asyncio.Semaphore(_CALLS)
        self._calls: set[_Call] = set()
        self._making = threading.Lock()
        self._made: Any = None

    async def events(
        self, operation: Operation, body: dict[str, Any]
    ) -> AsyncGenerator[dict[str, Any], None]:
        """The events of an answer as botocore gives them; of a Converse its one answer.

        That of an InvokeModel is `{"body": bytes}`. Raises ProviderError only. Left early, it
        ends the call.
        """
        if self._options.guarded:
            self._check_url()
        await self._slots.acquire()
        call = _Call(asyncio.get_running_loop())
        thread = threading.Thread(
            target=self._work, args=(call, operation, body), name="bedrock", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as exc:
            self._slots.release()
            raise ProviderUnavailable(f"{self._told} finds no free thread here.") from exc
        self._calls.add(call)
        try:
            whole = False
            with suppress(TimeoutError):
                # the answer is told: neither a reset nor a line left open can spoil it any more
                while (event := await call.next(_LINGER if whole else None)) is not None:
                    yield event
                    whole = whole or "metadata" in event
            if call.failure is not None and not whole:
                raise self._as_ours(call.failure) from call.failure
        finally:
            call.abandon()
            self._calls.discard(call)

    def close(self) -> None:
        """End the calls that are under way and close the connections."""
        for call in self._calls:
            call.abandon()
        if self._made is not None:
            self._made.close()

    def _work(self, call: "_Call", operation: Operation, body: dict[str, Any]) -> None:
        failure: Exception | None = None
        _here.call = call
        try:
            client = self._client()
            if operation == "Converse":
                call.give(client.converse(**body))
            elif operation == "InvokeModel":
                call.give({"body": client.invoke_model(**body)["body"].read()})
            else:
                with closing(client.converse_stream(**body)["stream"]) as stream:
                    for event in stream:
                        call.give(event)
        except Exception as exc:
            failure = exc
        finally:
            call.end(failure, self._slots.release)

    def _client(self) -> Any:
        with self._making:
            if self._made is None:
                self._made = _make_client(self._options)
        return self._made

    def _check_url(self) -> None:
        # botocore looks addresses up by itself, so that a checked one could not be pinned
        from chalicelib.outbound import Guard, Refused

        told = f"{self._told} cannot be called"
        if not self._options.api_key:
            # the operator's own credentials would be used, at the tenant's word
            raise ProviderDenied(f"{told} without a key of its own.")
        url = self._options.base_url
        try:
            guard = Guard(settings().tool_private_hosts)
            guard.check_url(url)
        except Refused as exc:
            raise ProviderDenied(f"{told}: {exc}") from exc
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
        if not _AWS.fullmatch(host) and not guard.allows(host, port):
            raise ProviderDenied(f"{told}: its URL is not one of Amazon Bedrock's.")

    def _as_ours(self, exc: Exception) -> ProviderError:
        from botocore import exceptions as botocore
        from botocore.eventstream import ParserError
        from botocore.parsers import ResponseParserError
        from urllib3.exceptions import HTTPError, ReadTimeoutError

        told = self._told
        if isinstance(exc, botocore.ClientError):
            return self._refusal(exc)
        if isinstance(exc, botocore.ParamValidationError):
            return ProviderUnsupported(f"{told} cannot take this request.")
        if isinstance(exc, botocore.NoRegionError):
            return ProviderDenied(f"{told} needs AWS_REGION to be set.")
        if isinstance(exc, _denying()):
            return ProviderDenied(f"{told} has no valid AWS credentials.")
        if isinstance(
            exc, botocore.ReadTimeoutError | botocore.ConnectTimeoutError | ReadTimeoutError
        ):
            return ProviderUnavailable(f"{told} timed out.")
        if isinstance(
            exc, botocore.HTTPClientError | botocore.ConnectionError | HTTPError | OSError
        ):
            return ProviderUnavailable(f"{told} broke the connection.")
        if isinstance(exc, ParserError | ResponseParserError):
            return ProviderUnavailable(f"{told} sent what cannot be read.")
        # also what is wrong here and not there; the exception's text may hold what was said
        _log.error(
            "a call of Bedrock failed unexpectedly",
            extra={"action": "bedrock_call_failed", "error": type(exc).__qualname__},
        )
        return ProviderUnavailable(f"{told} could not be called.")

    def _refusal(self, exc: Any) -> ProviderError:
        error = exc.response.get("Error", {})
        about = exc.response.get("ResponseMetadata", {})
        message = str(error.get("Message") or "")
        _log.debug("provider refused", extra={"action": "provider_refused", "body": message})
        return refusal(
            self._told,
            code=str(error.get("Code") or ""),
            message=message,
            status=about.get("HTTPStatusCode"),
            retry_after=about.get("HTTPHeaders", {}).get("retry-after"),
        )


class _Call:
    """What a call's thread and its reader share: the events, the end, and the socket to shut."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._over = False
        self.failure: Exception | None = None

    async def next(self, timeout: float | None) -> dict[str, Any] | None:
        """The next event, None at the end; raises TimeoutError after so many seconds."""
        async with asyncio.timeout(timeout):
            return await self._events.get()

    def give(self, event: dict[str, Any]) -> None:
        """Hand an event to the loop; from the thread."""
        self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    def end(self, failure: Exception | None, release: Any) -> None:
        """Say that the thread is done; from the thread, as its last act."""
        with self._lock:
            self._socket = None

        def tell() -> None:
            release()
            self.failure = failure
            self._events.put_nowait(None)

        with suppress(RuntimeError):  # the loop has closed: nobody listens
            self._loop.call_soon_threadsafe(tell)

    def reads_from(self, sock: socket.socket) -> None:
        """Take note of the socket that is read next; raises where the call was left meanwhile."""
        with self._lock:
            if self._over:
                raise ConnectionAbortedError
            self._socket = sock

    def abandon(self) -> None:
        """End the call, wherever its thread waits; nothing where it is done."""
        with self._lock:
            self._over = True
            if self._socket is not None:
                with suppress(OSError):
                    # closing would wait for the reader, and TLS would say good-bye first
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _make_client(options: ProviderOptions) -> Any:
    import boto3
    import botocore
    import botocore.session
    from botocore.config import Config

    session = botocore.session.Session()
    session.register_component("data_loader", _loader())
    region = session.get_config_variable("region") or os.environ.get("AWS_REGION")
    signing = {}
    if options.api_key:
        # not signed at all; the key is put in below, as botocore would only from the environment
        signing = {"signature_version": botocore.UNSIGNED}
        region = region or ("us-east-1" if options.base_url else None)
    client = boto3.session.Session(botocore_session=session, region_name=region).client(
        "bedrock-runtime",
        endpoint_url=options.base_url or None,
        config=Config(
            connect_timeout=options.connect_timeout,
            read_timeout=_READ_TIMEOUT,
            retries={"total_max_attempts": 1},
            max_pool_connections=_CALLS,
            **signing,
        ),
    )

    def add_headers(request: Any, operation_name: str, **_: Any) -> None:
        # the operation is in the path, and the two are not answered alike
        asked = operation_name.encode() + b"|" + bytes(request.data)
        request.headers["Idempotency-Key"] = idempotency_key(options.name, options.model, asked)
        if options.api_key:
            request.headers["Authorization"] = f"Bearer {options.api_key}"

    client.meta.events.register("before-sign.bedrock-runtime", add_headers)
    http = client._endpoint.http_session
    http._pool_classes_by_scheme = http._manager.pool_classes_by_scheme = _pools()
    return client


@cache
def _loader() -> Any:
    import botocore.loaders

    # it keeps what it has read of the service descriptions, 50 ms and 2 MB otherwise per client
    return botocore.loaders.create_loader()


@cache
def _pools() -> dict[str, Any]:
    """botocore's connection pools, whose connections say which socket their thread waits on."""
    from botocore import awsrequest as aws

    def watched(pool: Any, connection: Any) -> Any:
        def getresponse(self: Any) -> Any:
            _here.call.reads_from(self.sock)
            return connection.getresponse(self)

        ours = type(connection.__name__, (connection,), {"getresponse": getresponse})
        return type(pool.__name__, (pool,), {"ConnectionCls": ours})

    return {
        "http": watched(aws.AWSHTTPConnectionPool, aws.AWSHTTPConnection),
        "https": watched(aws.AWSHTTPSConnectionPool, aws.AWSHTTPSConnection),
    }


@cache
def _denying() -> tuple[type[Exception], ...]:
    """What botocore raises where there are no credentials, or none that work."""
    from botocore import exceptions as botocore

    return (
        botocore.ConfigNotFound,
        botocore.CredentialRetrievalError,
        botocore.LoginError,
        botocore.NoAuthTokenError,
        botocore.NoCredentialsError,
        botocore.PartialCredentialsError,
        botocore.ProfileNotFound,
        botocore.RefreshWithMFAUnsupportedError,
        botocore.SSOError,
        botocore.TokenRetrievalError,
        botocore.UnknownCredentialError,
    )
