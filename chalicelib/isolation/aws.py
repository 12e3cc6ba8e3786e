"""AWS's microVMs: Lambda starts them from an image, suspends what idles, ends what is left.

A VM that is not called is suspended by AWS after eleven minutes, which costs storage only, and
resumed by the next call. It ends when nobody has called it for longer than this service lets a
session's VM idle: AWS does that by itself where no sweep reaches it. No VM outlives eight hours,
which AWS counts from its start, suspended or not.

A VM has no role, and so no credentials. What it can reach is said by network connectors, and
without one AWS gives it the whole internet: so this driver starts none without.
"""

import asyncio
import contextlib
import itertools
import logging
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from chalicelib.config import Settings
from chalicelib.isolation.aws_calls import Calls, Conflict
from chalicelib.isolation.aws_endpoint import Reply, Tokens, Unreached, address, send
from chalicelib.isolation.base import (
    Listed,
    Machine,
    MachineGone,
    MachineSilent,
    MachineUnavailable,
)

if TYPE_CHECKING:
    import aiohttp

_log = logging.getLogger(__name__)

LONGEST: Final = 28_800
"""Seconds that AWS lets a VM live."""

# a call that only waits is no traffic to AWS: the longest that a tool may take, and a minute
_SUSPEND_AFTER: Final = 660
# given to the sweep before AWS ends a VM in its place
_GRACE: Final = 300
_START_SECONDS: Final = 60.0
_HEALTH_SECONDS: Final = 5.0
# looks at a new VM that AWS may answer with "no such VM": what it tells lags behind what it did
_LAG: Final = 5
# between AWS's clock and this one
_SKEW: Final = timedelta(seconds=2)
_WAITS: Final = (0.2, 0.4, 0.8, 1.6)
_ENDED: Final = frozenset({"TERMINATING", "TERMINATED"})
_SUSPENDED: Final = frozenset({"SUSPENDING", "SUSPENDED"})
_HAS_ENDED: Final = "The microVM has ended."


def idle_policy(idle: float) -> dict[str, Any]:
    """When AWS suspends and when it ends a VM that is let idle for so many seconds."""
    suspended = max(60, math.ceil(idle) + _GRACE - _SUSPEND_AFTER)
    return {
        "maxIdleDurationSeconds": _SUSPEND_AFTER,
        "suspendedDurationSeconds": min(suspended, LONGEST - _SUSPEND_AFTER),
        "autoResumeEnabled": True,
    }


class AwsDriver:
    """A `Driver`; the image and the connectors are the settings'."""

    name = "aws"
    longest = float(LONGEST)

    def __init__(
        self,
        settings: Settings,
        *,
        client: Callable[[], Any] | None = None,
        connect: "Callable[[], aiohttp.BaseConnector] | None" = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`client` and `connect` make what calls the API and the VMs, where AWS is not meant."""
        self._image = settings.microvm_image
        self._egress = settings.microvm_egress
        self._now = now
        self._calls = Calls(client)
        self._tokens = Tokens(self._calls, now=now)
        self._connect = connect

    async def start(self, *, token: str, idle: float) -> Machine:
        """A VM of the image; one that has been suspended since is resumed."""
        if not self._image or not self._egress:
            _log.error(
                "no microVM is started: PAL_MICROVM_IMAGE and PAL_MICROVM_EGRESS must be set",
                extra={"action": "microvm_not_set_up"},
            )
            raise MachineUnavailable("MicroVMs are not set up here.")
        try:
            async with asyncio.timeout(_START_SECONDS):
                machine = await self._run(token, idle)
                await self._until_ready(machine)
        except TimeoutError as exc:
            raise MachineUnavailable("The microVM takes too long to start.") from exc
        return machine

    async def ask(
        self, machine: Machine, path: str, body: dict[str, Any], *, timeout: float
    ) -> dict[str, Any]:
        """The agent's answer. A request that may have reached the agent is not sent again."""
        try:
            async with asyncio.timeout(timeout):
                return await self._ask(machine, path, body)
        except TimeoutError as exc:
            raise MachineSilent(f"The microVM did not answer in {timeout:g} s.") from exc

    async def terminate(self, machine_id: str) -> None:
        """End the VM; AWS does it within seconds."""
        self._tokens.forget(machine_id)
        try:
            await self._calls.call("terminate_microvm", microvmIdentifier=machine_id)
        except MachineGone:
            return
        except Conflict as exc:
            raise MachineUnavailable("The microVM cannot be ended yet.") from exc

    async def list(self) -> list[Listed]:
        """All VMs of the image: an image is one deployment's alone."""
        found: list[Listed] = []
        page: dict[str, Any] = {}
        while True:
            try:
                answer = await self._calls.call(
                    "list_microvms", imageIdentifier=self._image, maxResults=50, **page
                )
            except MachineGone as exc:
                raise MachineUnavailable("The image of microVMs is not there.") from exc
            # those that have ended are told of for a while
            found += [
                Listed(id=item["microvmId"], started_at=_utc(item["startedAt"]))
                for item in answer["items"]
                if item["state"] not in _ENDED
            ]
            if not answer.get("nextToken"):
                return found
            page = {"nextToken": answer["nextToken"]}

    async def close(self) -> None:
        """Close what is open to AWS."""
        self._calls.close()

    async def _run(self, token: str, idle: float) -> Machine:
        for wait in (*_WAITS, None):
            try:
                made = await self._calls.call(
                    "run_microvm",
                    imageIdentifier=self._image,
                    clientToken=token,
                    idlePolicy=idle_policy(idle),
                    maximumDurationInSeconds=LONGEST,
                    # what code prints goes back to who asked, and nowhere else
                    logging={"disabled": {}},
                    egressNetworkConnectors=list(self._egress),
                )
                break
            except MachineGone as exc:
                # it is the image that is not there
                _log.error(
                    "no microVM is started: there is no such image",
                    extra={"action": "microvm_not_set_up"},
                )
                raise MachineUnavailable("MicroVMs are not set up here.") from exc
            except Conflict as exc:
                if wait is None:
                    raise MachineGone("The token was used for another microVM.") from exc
                await asyncio.sleep(wait)
        if made["state"] in _ENDED:
            raise MachineGone(_HAS_ENDED)
        return Machine(
            id=made["microvmId"],
            endpoint=address(made["endpoint"]),
            started_at=_utc(made["startedAt"]),
        )

    async def _until_ready(self, machine: Machine) -> None:
        for look, wait in enumerate(itertools.chain(_WAITS, itertools.repeat(1.0))):
            with contextlib.suppress(Conflict):
                state = await self._state(machine.id, unknown="PENDING" if look < _LAG else None)
                if state != "PENDING" and await self._healthy(machine):
                    return
            await asyncio.sleep(wait)

    async def _healthy(self, machine: Machine) -> bool:
        token = await self._tokens.take(machine.id)
        try:
            async with asyncio.timeout(_HEALTH_SECONDS):
                reply = await send(
                    "GET", f"{machine.endpoint}/healthz", token=token, connect=self._connect
                )
        except (Unreached, TimeoutError):
            return False
        if reply.status == 403:
            self._tokens.forget(machine.id)
        return reply.status == 200

    async def _ask(self, machine: Machine, path: str, body: dict[str, Any]) -> dict[str, Any]:
        url = address(machine.endpoint) + path
        waits = iter(_WAITS)
        tried: set[str] = set()
        while True:
            since = datetime.fromtimestamp(self._now(), UTC)
            reply = await self._send(machine, url, body)
            if isinstance(reply, Reply) and (answer := reply.read()) is not None:
                return answer
            if isinstance(reply, Reply) and reply.status == 429:
                if (wait := next(waits, None)) is None:
                    raise MachineUnavailable("The microVM is asked too often; try again later.")
                await asyncio.sleep(wait)
                continue
            remedy = await self._remedy(machine, reply, since)
            if not remedy or remedy in tried:
                raise MachineUnavailable(
                    "The microVM did not answer; whether the call had an effect is unknown."
                )
            tried.add(remedy)

    async def _send(self, machine: Machine, url: str, body: dict[str, Any]) -> Reply | Unreached:
        try:
            token = await self._tokens.take(machine.id)
        except MachineGone as exc:
            raise MachineGone(_HAS_ENDED, begun=False) from exc
        except Conflict:
            return Unreached(sent=False)
        try:
            return await send("POST", url, token=token, body=body, connect=self._connect)
        except Unreached as exc:
            return exc

    async def _remedy(self, machine: Machine, reply: Reply | Unreached, since: datetime) -> str:
        """What has been done so that the same request may be sent again; empty: it may not.

        Raises MachineGone for a VM that has ended.
        """
        kept_out = reply.kept_out if isinstance(reply, Reply) else not reply.sent
        state = await self._state(machine.id, since=None if kept_out else since)
        if isinstance(reply, Reply) and kept_out:
            self._tokens.forget(machine.id)
            return "token"
        if state in _SUSPENDED:
            with contextlib.suppress(Conflict):
                await self._calls.call("resume_microvm", microvmIdentifier=machine.id)
            return "resume"
        return "connection" if kept_out else ""

    async def _state(
        self, machine_id: str, *, since: datetime | None = None, unknown: str | None = None
    ) -> str:
        """Its state, `unknown` if AWS knows of no such VM; raises MachineGone once it ends.

        What was sent at `since` has begun there unless the VM had ended before.
        """
        try:
            answer = await self._calls.call("get_microvm", microvmIdentifier=machine_id)
        except MachineGone as exc:
            if unknown is not None:
                return unknown
            # AWS tells of a VM for long after its end
            self._tokens.forget(machine_id)
            raise MachineGone(_HAS_ENDED, begun=False) from exc
        if (state := str(answer["state"])) not in _ENDED:
            return state
        self._tokens.forget(machine_id)
        ended = answer.get("terminatedAt")
        begun = since is not None and (ended is None or ended + _SKEW > since)
        raise MachineGone(_HAS_ENDED, begun=begun)


def _utc(moment: datetime) -> datetime:
    return moment.astimezone(UTC)
