"""The SQL of sessions' VMs: one function a query. The caller owns the transaction."""

from dataclasses import dataclass
from typing import Any, Final, Literal

from chalicelib.db import Tx, load_queries
from chalicelib.isolation.base import Machine

_QUERIES: Final = load_queries(__file__, "store.sql")

_PATIENCE: Final = 300.0
_SLACK: Final = 30.0

Reason = Literal["idle", "gone", "expired", "closed"]


@dataclass(frozen=True, kw_only=True)
class Vm:
    """A session's VM that is starting or running. `notice` is why its session lost the last one.

    `machine` is None while it starts. `expires`: there is no time left for what is to be asked;
    `given_up`: it should have started long ago. `fresh`: that it is in use is written already.
    """

    id: str
    driver: str
    machine: Machine | None
    expires: bool
    given_up: bool
    notice: Reason | None
    told_turn: str | None
    fresh: bool


@dataclass(frozen=True, kw_only=True)
class Ending:
    """A VM that is to be ended; without a machine none is known to have been started."""

    id: str
    machine_id: str | None


async def lock_session(tx: Tx, session_id: str) -> bool:
    """Lock the session's head: whether the session is there and takes turns."""
    row = await _one(tx, "lock_session", session_id=session_id)
    return row is not None and bool(row[0])


async def find_vm(
    tx: Tx, session_id: str, *, turn_id: str, seconds: float, margin: float
) -> Vm | None:
    """The VM for something that takes so many seconds at most; None if there is none."""
    row = await _one(
        tx,
        "find_vm",
        session_id=session_id,
        turn_id=turn_id,
        seconds=seconds,
        margin=margin,
        patience=_PATIENCE,
        slack=_SLACK,
    )
    if row is None:
        return None
    machine = None
    if row[2] == "running":
        machine = Machine(id=row[3], endpoint=row[4], started_at=row[5])
    return Vm(
        id=row[0],
        driver=row[1],
        machine=machine,
        expires=bool(row[6]),
        given_up=row[7],
        notice=row[8],
        told_turn=row[9],
        fresh=row[10],
    )


async def use_vm(tx: Tx, vm_id: str, *, seconds: float, told: str | None) -> bool:
    """Keep it from being idle for so long; `told` is the turn that hears its notice."""
    return await _one(tx, "use_vm", id=vm_id, seconds=seconds, told=told) is not None


async def insert_vm(tx: Tx, *, vm_id: str, session_id: str, driver: str) -> None:
    """Enter a VM that is to be started."""
    values = {"id": vm_id, "session_id": session_id, "driver": driver}
    await tx.execute(_QUERIES["insert_vm"], values)


async def run_vm(tx: Tx, vm_id: str, machine: Machine, *, longest: float) -> int | None:
    """Enter that it runs: the seq of the event; None if it was not to, or is entered already."""
    row = await _one(
        tx,
        "run_vm",
        id=vm_id,
        machine_id=machine.id,
        endpoint=machine.endpoint,
        started_at=machine.started_at,
        longest=longest,
    )
    return None if row is None else int(row[0])


async def machine_of(tx: Tx, vm_id: str) -> str | None:
    """The driver's id of a VM that runs."""
    row = await _one(tx, "machine_of", id=vm_id)
    return None if row is None else str(row[0])


async def retire_vm(tx: Tx, vm_id: str, reason: Reason) -> Ending | None:
    """Let it be used no more; None if that has been done."""
    row = await _one(tx, "retire_vm", id=vm_id, reason=reason)
    return None if row is None else Ending(id=row[0], machine_id=row[1])


async def close_vms(tx: Tx, session_id: str) -> list[Ending]:
    """Let the session have no VM any more. Its head is locked, and it takes no turns from now on.

    What this returns is to be ended after the commit; the sweep ends what is not.
    """
    cur = await tx.execute(_QUERIES["close_vms"], {"session_id": session_id})
    return [Ending(id=row[0], machine_id=row[1]) for row in await cur.fetchall()]


async def begin_end(tx: Tx, vm_id: str, *, idle: float) -> Ending | None:
    """Let a VM that is due be used no more; None if it is not due, or another process is at it."""
    row = await _one(tx, "begin_end", id=vm_id, idle=idle)
    return None if row is None else Ending(id=row[0], machine_id=row[1])


async def finish_end(tx: Tx, vm_id: str) -> None:
    """Enter that the VM has ended."""
    await tx.execute(_QUERIES["lock_session_of"], {"id": vm_id})
    await tx.execute(_QUERIES["keep_word"], {"id": vm_id})
    await tx.execute(_QUERIES["delete_vm"], {"id": vm_id})


async def due_vms(tx: Tx, *, driver: str, idle: float, most: int) -> list[tuple[str, str]]:
    """(tenant, id) of VMs to be ended, of any tenant."""
    values = {"driver": driver, "idle": idle, "most": most}
    cur = await tx.execute(_QUERIES["due_vms"], values)
    return [(row[0], row[1]) for row in await cur.fetchall()]


async def known_machines(tx: Tx, *, driver: str, found: list[str]) -> set[str]:
    """Those of these machines that a row of any tenant knows."""
    cur = await tx.execute(_QUERIES["known_machines"], {"driver": driver, "found": found})
    return {row[0] for row in await cur.fetchall()}


async def lost_vms(
    tx: Tx, *, driver: str, alive: list[str], settled: float, most: int
) -> list[tuple[str, str, str]]:
    """(tenant, session, id) of VMs entered as running for so long that are none of the `alive`."""
    values = {"driver": driver, "alive": alive, "settled": settled, "most": most}
    cur = await tx.execute(_QUERIES["lost_vms"], values)
    return [(row[0], row[1], row[2]) for row in await cur.fetchall()]


async def purge_vms(tx: Tx) -> int:
    """Delete rows that no one can need any more: how many."""
    row = await _one(tx, "purge_vms")
    return int(row[0])


async def _one(tx: Tx, query: str, **values: Any) -> Any:
    return await (await tx.execute(_QUERIES[query], values)).fetchone()
