"""Sessions' microVMs: one each, whatever is lost on the way, and none that outlives its use."""

from collections.abc import Callable, Iterator

import pytest

from chalicelib.config import Secret
from chalicelib.errors import Unavailable
from chalicelib.isolation.base import MachineLost, MachineUnavailable, SessionClosed
from tests.fakes.machines import Cloud, FakeVm, ScriptedDriver
from tests.support.machines import Sessions
from tests.support.postgres import Cluster, TestDatabase
from tests.support.proxy import Proxy, proxy
from tests.support.stack import Stack
from tests.support.waiting import until

EVENTS = (
    "SELECT kind, data::jsonb ->> 'reason' FROM pal.session_events"
    " WHERE kind LIKE 'vm%%' AND session_id = %s ORDER BY seq"
)


@pytest.fixture
def sessions(make_stack: Callable[..., Stack], cloud: Cloud) -> Sessions:
    return Sessions(make_stack, cloud)


@pytest.fixture
def line(postgres: Cluster) -> Iterator[Proxy]:
    with proxy(postgres) as made:
        yield made


# ── one VM a session ─────────────────────────────────────────────────────────────────────────
def test_calls_at_once_in_two_processes_share_one_vm(sessions: Sessions, cloud: Cloud) -> None:
    """Lost if red: money for VMs that no one uses, and variables that come and go."""
    session, one, two = sessions.new(), sessions.stack.node, sessions.stack.another_node()
    cloud.held = True
    asking = [
        node.on.start(sessions.asking(node, session, "n = globals().get('n', 0) + 1\nprint(n)"))
        for node in (one, two)
        for _ in range(4)
    ]
    until(lambda: sum(cloud.starts.values()) == 2)  # each process's own, with one token
    cloud.held = False
    printed = sorted(future.result(30).body["stdout"].strip() for future in asking)
    assert printed == [str(n) for n in range(1, 9)]
    assert len(cloud.starts) == len(cloud.vms) == 1
    assert sessions.states() == ["running"]
    assert sessions.stack.database.rows(EVENTS, session) == [("vm_started", None)]


def test_sessions_and_tenants_share_nothing(sessions: Sessions, cloud: Cloud) -> None:
    """Lost if red: one customer's data in another's code."""
    stack = sessions.stack
    mine, also_mine = sessions.new(), sessions.new()
    theirs = sessions.new(stack.other_key)
    assert sessions.printed(mine, "x = 'mine'; print(x)") == "mine"
    assert "NameError" in sessions.printed(also_mine, "print(x)")
    assert "NameError" in sessions.printed(theirs, "print(x)", tenant=stack.other_tenant)
    assert sessions.printed(mine, "print(x)") == "mine"
    # not even by the id of another tenant's session
    with pytest.raises(SessionClosed):
        sessions.ask(mine, tenant=stack.other_tenant)
    assert len(cloud.alive) == 3


def test_a_start_whose_answer_is_lost_comes_to_the_same_vm(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: a VM that runs for eight hours and that no one knows of."""
    session = sessions.new()
    cloud.lose = 1
    assert sessions.printed(session, "print(1)") == "1"
    cloud.lose = 5
    other = sessions.new()
    with pytest.raises(MachineUnavailable):
        sessions.ask(other)
    assert sessions.states(other) == ["starting"]
    cloud.lose = 0
    assert sessions.printed(other, "print(2)") == "2"
    assert len(cloud.vms) == len(cloud.starts) == 2


def test_the_next_caller_takes_up_what_a_dead_process_had_begun(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: a session that has no VM ever again, or two."""
    session, dying = sessions.new(), sessions.stack.another_node()
    cloud.held = True
    future = dying.on.start(sessions.asking(dying, session, "print(1)"))
    until(lambda: cloud.starts)
    dying.run(dying.services.machines.close())  # its start is cut off in the middle
    with pytest.raises(BaseException):  # noqa: B017, PT011 - a cancellation, of whichever kind
        future.result(10)
    cloud.held = False
    assert sessions.states() == ["starting"]
    assert sessions.printed(session, "print(2)") == "2"
    assert len(cloud.vms) == len(cloud.starts) == 1


def test_a_caller_that_gives_up_leaves_the_start_to_the_next(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: a cancelled turn's VM, started and paid for, and never used."""
    session, node = sessions.new(), sessions.stack.node
    cloud.held = True
    future = node.on.start(sessions.asking(node, session, "print(1)"))
    until(lambda: cloud.starts)
    future.cancel()
    cloud.held = False
    until(lambda: sessions.states() == ["running"])
    assert sessions.printed(session, "print(2)") == "2"
    assert list(cloud.starts.values()) == [1]


@pytest.mark.parametrize(
    "statement",
    [b"INSERT INTO session_vms", b"state = 'running', machine_id", b"used_until = greatest"],
    ids=["entered", "started", "used"],
)
def test_a_database_that_goes_away_costs_a_call_and_no_vm(
    make_stack: Callable[..., Stack],
    database: TestDatabase,
    cloud: Cloud,
    line: Proxy,
    statement: bytes,
) -> None:
    """Lost if red: a second VM for each time that the database fails over."""
    url = Secret(line.url("pal_app", database.name))
    sessions = Sessions(make_stack, cloud, database_url=url, database_listen_url=Secret(""))
    session = sessions.new()
    line.lose_answer_to(statement)
    with pytest.raises(Unavailable):
        sessions.ask(session)
    assert sessions.printed(session, "print(1)") == "1"
    assert len(cloud.vms) == 1
    assert sessions.states() == ["running"]


# ── what becomes of it ───────────────────────────────────────────────────────────────────────
def test_a_vm_that_is_gone_is_replaced_and_the_session_told(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: a model that goes on with variables which are not there."""
    session = sessions.new()
    assert sessions.ask(session, "x = 1").notice is None
    cloud.only().alive = False
    # it had ended before it was asked, so it is asked again, of a fresh one
    answer = sessions.ask(session, "print('x' in globals())", turn="tur_two")
    assert (answer.body["stdout"].strip(), answer.notice) == ("False", "gone")
    # all of that turn's results tell it, and no later one's
    assert sessions.ask(session, turn="tur_two").notice == "gone"
    assert sessions.ask(session, turn="tur_three").notice is None
    assert sessions.stack.database.rows(EVENTS, session) == [
        ("vm_started", None),
        ("vm_replaced", "gone"),
    ]
    until(lambda: sessions.states(session) == ["running"])
    assert len(cloud.alive) == 1


def test_what_may_have_begun_is_not_run_a_second_time(sessions: Sessions, cloud: Cloud) -> None:
    """Lost if red: an order that is sent twice."""
    session = sessions.new()

    def die(vm: FakeVm) -> None:
        vm.alive = False
        cloud.on_ask = lambda vm: None

    cloud.on_ask = die
    with pytest.raises(MachineLost):
        sessions.ask(session, "order()")
    assert [body["code"] for _, _, body in cloud.asked] == ["order()"]
    assert sessions.ask(session).notice == "gone"


def test_a_vm_near_its_longest_time_is_replaced_before_it_is_used(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: a run that the eight-hour limit cuts off."""
    session = sessions.new()
    sessions.ask(session, "x = 1")
    old = cloud.only()
    sessions.age(session, 8 * 3600 - 200)
    answer = sessions.ask(session, "print('x' in globals())", turn="tur_two")
    assert (answer.body["stdout"].strip(), answer.notice) == ("False", "expired")
    sessions.sweep()
    assert not old.alive
    assert len(cloud.alive) == 1
    assert sessions.states(session) == ["running"]


def test_one_that_is_replaced_is_left_to_whoever_still_uses_it(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: a run of the same turn, cut off by the one beside it."""
    session = sessions.new()
    sessions.ask(session)
    old = cloud.only()
    sessions.stack.database.rows(
        "UPDATE pal.session_vms SET expires_at = now() + interval '4 minutes'"
    )
    sessions.ask(session)
    sessions.sweep()
    assert old.alive
    sessions.age(session, 60)
    sessions.sweep()
    assert [one for one in cloud.alive if one is old] == []


# ── its end ──────────────────────────────────────────────────────────────────────────────────
@pytest.mark.parametrize("how", ["stop", "delete", "end"])
def test_it_ends_with_its_session(sessions: Sessions, cloud: Cloud, how: str) -> None:
    """Lost if red: VMs, with what is in them, of sessions that are over."""
    http = sessions.stack.http()
    session, other = sessions.new(), sessions.new()
    for one in (session, other):
        sessions.ask(one)
    url = f"/v1/sessions/{session}"
    reply = http.call("DELETE", url) if how == "delete" else http.call("POST", f"{url}/{how}")
    assert reply.status in (200, 204)
    until(lambda: sessions.states(session) == [])
    assert len(cloud.alive) == 1
    with pytest.raises(SessionClosed):
        sessions.ask(session)
    assert sessions.printed(other, "print(2)") == "2"
    assert len(cloud.vms) == 2


def test_a_driver_that_cannot_end_it_now_is_asked_again(sessions: Sessions, cloud: Cloud) -> None:
    """Lost if red: a VM that outlives its deleted session by eight hours, or an answer by 15 s."""
    http, session = sessions.stack.http(), sessions.new()
    sessions.ask(session)
    cloud.terminates = False
    assert http.call("DELETE", f"/v1/sessions/{session}").status == 204
    assert sessions.sweep() == 0
    assert sessions.states(session) == ["ending"]
    cloud.terminates = True
    sessions.age(session, 0)
    assert sessions.sweep() == 1
    assert (sessions.states(session), cloud.alive) == ([], [])


def test_a_session_that_is_stopped_during_the_start_has_no_vm(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: a VM that is entered nowhere, since its session was closed before it ran."""
    session, node = sessions.new(), sessions.stack.node
    cloud.held = True
    future = node.on.start(sessions.asking(node, session, "print(1)"))
    until(lambda: cloud.starts)
    url = f"/v1/sessions/{session}/stop"
    assert sessions.stack.http().call("POST", url).status == 200
    cloud.held = False
    with pytest.raises(SessionClosed):
        future.result(30)
    assert cloud.alive == []
    assert sessions.states(session) == []


def test_a_run_in_flight_is_told_that_its_session_was_stopped(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: a fresh VM for a session that was stopped to have none."""
    session = sessions.new()
    url = f"/v1/sessions/{session}/stop"
    cloud.on_ask = lambda vm: sessions.stack.http().call("POST", url) and None
    with pytest.raises(SessionClosed):
        sessions.ask(session, "print(1)")
    assert cloud.alive == []
    assert len(cloud.vms) == 1


def test_one_that_is_not_used_is_reaped_and_the_session_told(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: VMs that are paid for overnight, or files that are gone without a word."""
    session, busy = sessions.new(), sessions.new()
    for one in (session, busy):
        sessions.ask(one)
    sessions.age(session, 1800 + 20)  # what was asked may still be running for 10 s
    sessions.age(busy, 1700)
    assert sessions.sweep() == 0
    sessions.age(session, 30)
    assert sessions.sweep() == 1
    assert len(cloud.alive) == 1
    assert sessions.states(session) == ["ended"]
    assert sessions.ask(session, turn="tur_two").notice == "idle"
    assert sessions.states(session) == ["running"]


def test_use_that_goes_on_keeps_it_and_is_not_written_each_time(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: a VM that is reaped under a session at work, or a row written for each call."""
    session = sessions.new()
    read = "SELECT xmin::text FROM pal.session_vms"
    sessions.ask(session)
    written = sessions.stack.database.one(read)
    sessions.ask(session)
    assert sessions.stack.database.one(read) == written
    sessions.age(session, 1795)
    sessions.ask(session)
    assert sessions.sweep() == 0
    assert len(cloud.alive) == 1


# ── what is entered, and what there is ───────────────────────────────────────────────────────
def test_machines_that_no_row_knows_are_ended_and_no_others(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: leaks without end, or a VM that is killed as it starts."""
    session = sessions.new()
    sessions.ask(session)
    known = cloud.only()
    leaked = cloud.start("vm_of_a_dead_process", age=700)
    young = cloud.start("vm_that_is_starting", age=500)
    cloud.down = True
    assert sessions.reconcile() == 0
    cloud.down = False
    assert sessions.reconcile() == 1
    assert (known.alive, young.alive, leaked.alive) == (True, True, False)


def test_a_start_that_took_longer_than_anyone_waits_is_not_taken_up(
    sessions: Sessions, cloud: Cloud
) -> None:
    """Lost if red: a VM that is entered in the moment in which the reconciler ends it."""
    session, node = sessions.new(), sessions.stack.node
    cloud.held = True
    future = node.on.start(sessions.asking(node, session, "print(1)"))
    until(lambda: cloud.starts)
    sessions.age(session, 500)
    cloud.held = False
    assert future.result(30).body["stdout"].strip() == "1"
    assert len(cloud.vms) == 2
    assert len(cloud.alive) == 1


def test_rows_whose_machine_is_gone_are_entered_as_gone(sessions: Sessions, cloud: Cloud) -> None:
    """Lost if red: a session that learns of its loss by a failed call."""
    old, new = sessions.new(), sessions.new()
    for one in (old, new):
        sessions.ask(one)
    for vm in cloud.vms.values():
        vm.alive = False
    sessions.age(old, 700)
    assert sessions.reconcile() == 1
    assert (sessions.states(old), sessions.states(new)) == (["ended"], ["running"])
    assert sessions.ask(old, turn="tur_two").notice == "gone"


def test_rows_of_other_drivers_are_not_ended_and_not_used(sessions: Sessions, cloud: Cloud) -> None:
    """Lost if red: one host's VMs, ended by the sweep of another, which cannot even see them."""
    session = sessions.new()
    sessions.ask(session)
    theirs = cloud.only()
    sessions.stack.database.rows("UPDATE pal.session_vms SET driver = 'elsewhere'")
    sessions.age(session, 4000)
    assert sessions.sweep() == 0
    assert sessions.ask(session, turn="tur_two").notice == "gone"
    assert theirs.alive
    assert sessions.states(session) == ["ending", "running"]
    # no VM lives that long, so the row of a driver that never came back goes
    sessions.stack.database.rows(
        "UPDATE pal.session_vms SET expires_at = now() - interval '2 days' WHERE state = 'ending'"
    )
    sessions.stack.node.run(sessions.stack.node.services.purge())
    assert sessions.states(session) == ["running"]


def test_what_is_left_of_a_session_goes_with_it(sessions: Sessions) -> None:
    """Lost if red: rows without end, of what sessions had been told before they were deleted."""
    session, deleted = sessions.new(), sessions.new()
    for one in (session, deleted):
        sessions.ask(one)
        sessions.age(one, 4000)
    assert sessions.sweep() == 2
    assert sessions.states() == ["ended", "ended"]
    # by whatever way: here by none that knows of VMs
    sessions.stack.database.rows("DELETE FROM pal.sessions WHERE id = %s", deleted)
    sessions.stack.node.run(sessions.stack.node.services.purge())
    assert sessions.states() == ["ended"]
    sessions.stack.http().call("POST", f"/v1/sessions/{session}/stop")
    assert sessions.states() == []


def test_a_process_that_ends_lets_go_of_its_driver(sessions: Sessions) -> None:
    """Lost if red: a laptop's VMs, which end with the process they are children of."""
    node = sessions.stack.another_node()
    driver = node.services.machines.driver
    assert isinstance(driver, ScriptedDriver)
    node.run(node.services.stop())
    assert driver.closed
