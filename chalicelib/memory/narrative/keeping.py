"""A narrative kept up to date without a model, inside of the transaction that changed something."""

from datetime import datetime

from chalicelib.db import Tx
from chalicelib.memory.episodes import hold_person
from chalicelib.memory.narrative import store
from chalicelib.memory.narrative.material import read_material
from chalicelib.memory.narrative.plain import renew_lines


async def touch(tx: Tx, *, person_id: str | None, group_id: str | None, now: datetime) -> None:
    """Write what is new into the group's narrative or, without a group, into the person's.

    A model's lines stay as long as they hold; it is asked for new ones at the next pass. The person
    is locked, whoever that is by now; of neither, and of one who is gone, nothing is written.
    Raises Unavailable while the person is being merged.
    """
    if group_id is None:
        person_id = await hold_person(tx, person_id)
    whose = [person_id] if group_id is None and person_id is not None else []
    groups = [] if group_id is None else [group_id]
    if not whose and not groups:
        return
    await store.mark_stale(tx, people=whose, groups=groups)
    [narrative] = await store.read_narratives(tx, people=whose, groups=groups)
    material = await read_material(tx, person_id=person_id, group_id=group_id)
    new = material.after(narrative.told_at)
    lines = renew_lines(narrative.lines, new.facts, new.episodes)
    await store.write_lines(tx, narrative.id, lines, now=now)
