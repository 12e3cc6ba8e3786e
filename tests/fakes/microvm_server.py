"""A wire-level fake of AWS Lambda MicroVMs: the API, and an https endpoint for each VM.

    with MicrovmServer() as aws:
        driver = AwsDriver(settings(aws), client=aws.client, connect=aws.connector, now=aws.time)
        aws.advance(seconds=660)  # its clock is its own: nobody has called the VM, it is suspended

Requests are held against botocore's model of the service and AWS's limits; what does not fit is a
ValidationException, and `aws.refused` says why. The VMs' names resolve to this server for who
uses `connector`, and its certificate is good for these names and for that connector only. What
runs in a VM is made by `guest`; a VM of its own state, `Counter`, unless said otherwise.
"""

import asyncio
import json
import socket
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol, Self

import aiohttp
import boto3
from aiohttp import web
from aiohttp.abc import AbstractResolver, ResolveResult
from botocore.config import Config

from chalicelib.isolation.aws_endpoint import kept_alive
from tests.fakes.microvm_wire import MODEL, problem_of, read_call, refusal
from tests.fakes.openai_wire import reset
from tests.support.tls import Authority

REGION: Final = "eu-west-1"
IMAGE: Final = f"arn:aws:lambda:{REGION}:123456789012:microvm-image:palimpsest-dev"
CLOSED: Final = f"arn:aws:lambda:{REGION}:123456789012:network-connector:palimpsest-dev"
INTERNET: Final = (
    f"arn:aws:lambda:{REGION}:aws:network-connector:aws-network-connector:INTERNET_EGRESS"
)
_TOKEN: Final = "X-aws-proxy-auth"


class Guest(Protocol):
    """What listens in a VM at the port that requests are forwarded to."""

    async def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        """The status and the body of its reply."""
        ...

    async def close(self) -> None:
        """The VM has ended."""
        ...


class Counter:
    """Counts the runs, and refuses to read: enough to tell one VM from another."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []

    async def answer(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        if (method, path) == ("GET", "/healthz"):
            return 200, b'{"ok": true}'
        if (method, path) == ("POST", "/v1/run"):
            self.runs.append(json.loads(body))
            return 200, json.dumps({"stdout": str(len(self.runs)), "exitCode": 0}).encode()
        return 404, json.dumps({"error": "There is no such file.", "code": "not_found"}).encode()

    async def close(self) -> None:
        pass


@dataclass(kw_only=True)
class Vm:
    """A VM as AWS keeps it."""

    id: str
    host: str
    asked: dict[str, Any]
    guest: Guest
    started: datetime
    used: datetime
    state: str = "PENDING"
    since: datetime | None = None
    """When it was suspended, or had ended."""
    looks: int = 0

    @property
    def egress(self) -> list[str]:
        """What it may reach out by; the internet unless something else was asked for."""
        return self.asked.get("egressNetworkConnectors") or [INTERNET]

    def told(self) -> dict[str, Any]:
        """Its description, as GetMicrovm gives it."""
        told = {
            "microvmId": self.id,
            "state": self.state,
            # the host without a scheme, as AWS does
            "endpoint": self.host,
            "imageArn": self.asked["imageIdentifier"],
            "imageVersion": "1.0",
            "idlePolicy": self.asked["idlePolicy"],
            "maximumDurationInSeconds": self.asked["maximumDurationInSeconds"],
            "startedAt": self.started.timestamp(),
            "egressNetworkConnectors": self.egress,
        }
        if self.state == "TERMINATED" and self.since:
            told["terminatedAt"] = self.since.timestamp()
        return told

    def age(self, now: datetime) -> None:
        """Let happen to it what time brings."""
        policy = self.asked["idlePolicy"]
        idle = self.used + timedelta(seconds=policy["maxIdleDurationSeconds"])
        if self.state == "RUNNING" and now >= idle:
            self.state, self.since = "SUSPENDED", idle
        ends = self.started + timedelta(seconds=self.asked["maximumDurationInSeconds"])
        if self.state == "SUSPENDED" and self.since:
            ends = min(ends, self.since + timedelta(seconds=policy["suspendedDurationSeconds"]))
        if self.state != "TERMINATED" and now >= ends:
            self.state, self.since = "TERMINATED", ends


@dataclass(frozen=True, kw_only=True)
class Asked:
    """A call of the API as it came."""

    operation: str
    parameters: dict[str, Any]


@dataclass(kw_only=True)
class _Fault:
    operation: str
    code: str
    times: int = field(default=1)


class MicrovmServer:
    """The server in a background thread; a context manager."""

    def __init__(self, *, guest: Callable[[], Guest] = Counter, page: int = 50) -> None:
        self._guest = guest
        self._page = page
        self._thread = threading.Thread(target=self._serve, name="fake-microvms", daemon=True)
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._until = asyncio.Event()
        self._authority = Authority(f"*.lambda-microvm.{REGION}.on.aws")
        self._trusting = self._authority.trusting()
        self._api_port = self._vm_port = 0
        self._now = datetime.now(UTC)
        self._tokens: dict[str, tuple[str, list[dict[str, Any]], datetime]] = {}
        self._started: dict[str, Vm] = {}
        self._faults: list[_Fault] = []
        self.vms: dict[str, Vm] = {}
        self.asked: list[Asked] = []
        self.refused: list[str] = []
        self.kept_out = 0  # requests to VMs without a good token
        self.boots = 1  # looks at a new VM until it runs
        self.auto_resume = True  # else a suspended VM has to be resumed by a call

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._ready.wait(10):
            raise RuntimeError("the fake microVM service did not start")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._until.set)
        self._thread.join(10)

    @property
    def url(self) -> str:
        """The API's."""
        return f"http://127.0.0.1:{self._api_port}"

    def client(self) -> Any:
        """A boto3 client of the API, which tries once more within a second."""
        return boto3.session.Session().client(
            "lambda-microvms",
            endpoint_url=self.url,
            region_name=REGION,
            aws_access_key_id="key",
            aws_secret_access_key="secret",
            config=Config(retries={"total_max_attempts": 2, "mode": "standard"}),
        )

    def connector(self) -> aiohttp.BaseConnector:
        """Where every name is this server's, and its certificate good."""
        return _Connector(
            ssl=self._trusting, resolver=_Here(self._vm_port), socket_factory=kept_alive
        )

    @property
    def now(self) -> datetime:
        """Its clock."""
        return self._now

    def time(self) -> float:
        """Seconds of its clock."""
        return self._now.timestamp()

    def advance(self, *, seconds: float) -> None:
        """Let this much time pass for AWS."""
        self._now += timedelta(seconds=seconds)
        for vm in self.vms.values():
            vm.age(self._now)

    def fail(self, operation: str, code: str, *, times: int = 1) -> None:
        """Let the next calls fail; with `lost` they are done, and their answers never come."""
        self._faults.append(_Fault(operation=operation, code=code, times=times))

    def recover(self) -> None:
        """Let no call fail any more."""
        self._faults.clear()

    def end(self, machine_id: str) -> None:
        """End a VM behind everybody's back."""
        vm = self.vms[machine_id]
        vm.state, vm.since = "TERMINATED", self._now

    def expire_tokens(self) -> None:
        """Let no token be good any more."""
        self._tokens.clear()

    def calls(self, operation: str) -> list[dict[str, Any]]:
        """What this operation was asked with, each time."""
        return [one.parameters for one in self.asked if one.operation == operation]

    def _serve(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        api, vms = web.Application(), web.Application(client_max_size=64 << 20)
        api.router.add_route("*", "/{path:.*}", self._call)
        vms.router.add_route("*", "/{path:.*}", self._forward)
        runners = [web.AppRunner(app, access_log=None, shutdown_timeout=0.5) for app in (api, vms)]
        try:
            for runner, tls in zip(runners, (None, self._authority.serving()), strict=True):
                await runner.setup()
                await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            self._api_port, self._vm_port = (runner.addresses[0][1] for runner in runners)
            self._ready.set()
            await self._until.wait()
        finally:
            for runner in runners:
                await runner.cleanup()
            for vm in self.vms.values():
                await vm.guest.close()

    # --- the API ---------------------------------------------------------------------------------
    async def _call(self, request: web.Request) -> web.StreamResponse:
        operation, parameters = read_call(request, await request.read())
        self.asked.append(Asked(operation=operation, parameters=parameters))
        problem = problem_of(operation, parameters)
        signed = request.headers.get("Authorization", "")
        if f"/{REGION}/lambda/aws4_request" not in signed:
            problem = "The request is not signed for Lambda."
        if problem:
            self.refused.append(problem)
            return refusal(operation, "ValidationException", problem)
        fault = next(
            (one for one in self._faults if one.operation == operation and one.times), None
        )
        if fault is not None:
            fault.times -= 1
            if fault.code != "lost":
                return refusal(operation, fault.code, "told so by the test")
        status, body = self._answer(operation, parameters)
        if fault is not None:
            await reset(request)
            return web.Response()
        if status != 200:
            return refusal(operation, body["code"], body["code"])
        return web.json_response(body)

    def _answer(self, operation: str, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if operation == "RunMicrovm":
            return self._start(asked)
        if operation == "ListMicrovms":
            return 200, self._list(asked)
        vm = self.vms.get(asked["microvmIdentifier"])
        if vm is None:
            return 404, {"code": "ResourceNotFoundException"}
        if operation == "GetMicrovm":
            vm.looks += 1
            if vm.state == "PENDING" and vm.looks >= self.boots:
                vm.state = "RUNNING"
            return 200, vm.told()
        if operation == "CreateMicrovmAuthToken":
            if vm.state in ("PENDING", "TERMINATED"):
                return 409, {"code": "ConflictException"}
            token = f"token-{uuid.uuid4()}"
            until = self._now + timedelta(minutes=asked["expirationInMinutes"])
            self._tokens[token] = (vm.id, asked["allowedPorts"], until)
            return 200, {"authToken": {_TOKEN: token}}
        if operation == "ResumeMicrovm":
            if vm.state == "TERMINATED":
                return 409, {"code": "ConflictException"}
            vm.state, vm.used = "RUNNING", self._now
            return 200, {}
        if operation == "TerminateMicrovm":
            if vm.state != "TERMINATED":
                self.end(vm.id)
            return 200, {}
        return 400, {"code": "ValidationException"}

    def _start(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        if asked["imageIdentifier"] != IMAGE:
            return 404, {"code": "ResourceNotFoundException"}
        token = asked["clientToken"]
        if (known := self._started.get(token)) is not None:
            same = known.asked == asked
            return (200, known.told()) if same else (409, {"code": "ConflictException"})
        vm = Vm(
            id=f"microvm-{uuid.uuid4()}",
            host=f"{uuid.uuid4()}.lambda-microvm.{REGION}.on.aws",
            asked=asked,
            guest=self._guest(),
            started=self._now,
            used=self._now,
        )
        self._started[token] = self.vms[vm.id] = vm
        return 200, vm.told()

    def _list(self, asked: dict[str, Any]) -> dict[str, Any]:
        item = MODEL.operation_model("ListMicrovms").output_shape.members["items"].member
        of_image = [
            {key: vm.told()[key] for key in item.members}
            for vm in self.vms.values()
            if asked.get("imageIdentifier") in (None, vm.asked["imageIdentifier"])
        ]
        first = int(asked.get("nextToken", "0"))
        until = first + min(self._page, asked.get("maxResults", 50))
        more = {"nextToken": str(until)} if until < len(of_image) else {}
        return {"items": of_image[first:until], **more}

    # --- the endpoints ---------------------------------------------------------------------------
    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read()
        vm = next((one for one in self.vms.values() if one.host == request.host), None)
        token = self._tokens.get(request.headers.get(_TOKEN, ""))
        port = int(request.headers.get("X-aws-proxy-port", "8080"))
        if (
            vm is None
            or token is None
            or token[0] != vm.id
            or {"port": port} not in token[1]
            or self._now >= token[2]
        ):
            self.kept_out += 1
            return web.Response(status=403, text="Forbidden")
        vm.age(self._now)
        if vm.state == "SUSPENDED" and self.auto_resume:
            vm.state = "RUNNING"
        if vm.state != "RUNNING":
            return web.Response(status=502, text="Bad Gateway")
        vm.used = self._now
        status, body = await vm.guest.answer(request.method, request.path, body)
        return web.Response(status=status, body=body, content_type="application/json")


class _Connector(aiohttp.TCPConnector):
    """Breaks off what it closes: a test's loop does not wait for TLS to say good-bye."""

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        if should_close or protocol.should_close:
            protocol.abort()
        super()._release(key, protocol, should_close=should_close)


class _Here(AbstractResolver):
    def __init__(self, port: int) -> None:
        self._port = port

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        return [
            {
                "hostname": host,
                "host": "127.0.0.1",
                "port": self._port,
                "family": socket.AF_INET,
                "proto": 0,
                "flags": socket.AI_NUMERICHOST,
            }
        ]

    async def close(self) -> None:
        pass
