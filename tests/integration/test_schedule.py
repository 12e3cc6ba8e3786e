"""What memory does by itself, in a gateway and on AWS: passes that are due, vectors that lack."""

import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from chalice.test import Client

import app as application
from chalicelib import bridge, config, services
from chalicelib.errors import Unavailable
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.fakes.openai_wire import Recorded
from tests.support.aws import aws_server
from tests.support.http import HttpClient
from tests.support.process import GatewayProcess
from tests.support.stack import Stack
from tests.support.waiting import until

SAID = "I moved to Oslo last year."
OSLO = {"topic": "home city", "content": "Moved to Oslo last year.", "confidence": 0.9}
ANSWER = Reply(pieces=[json.dumps({"distillates": [OSLO]})])
NOTHING = Reply(pieces=['{"distillates": []}'])
FACTS = "SELECT count(*) FROM pal.memory_distillates"
OWNERS = "SELECT DISTINCT tenant_id FROM pal.memory_distillates"
LEASES = "SELECT count(*) FROM pal.memory_passes WHERE lease IS NOT NULL"


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    """A process that has memory and does nothing by itself; passes are due at once."""
    return make_stack(memory_distill=True, memory_distill_interval=0.05, embeddings="off")


def say(http: HttpClient, *contents: str, **more: Any) -> None:
    """Put these on the timeline, each by someone of its own."""
    batch = [
        {
            "channel": "chat",
            "kind": "message",
            "direction": "in",
            "content": content,
            "occurredAt": "2026-01-05T10:00:00Z",
            "person": {"channel": "user", "handle": f"u{number}"},
            **more,
        }
        for number, content in enumerate(contents)
    ]
    reply = http.call("POST", "/v1/memory/events", {"events": batch})
    assert reply.status == 200, reply.body


# ── in a gateway ─────────────────────────────────────────────────────────────────────────────
def test_pass_comes_by_itself(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: memory, for everyone who does not call `distill` themselves."""
    provider.default(ANSWER)
    stack.another_node(sweeping=True)
    say(stack.http(), SAID)
    until(lambda: stack.database.one(FACTS) == 1)
    say(stack.http(stack.other_key), SAID)
    until(lambda: len(stack.database.rows(OWNERS)) == 2)
    # what is asked for besides is narratives
    assert sum(b'"distillates"' in one.raw for one in provider.requests) == 2


def test_gateway_process_makes_up_for_what_it_missed(
    stack: Stack, provider: FakeOpenAI, make_gateway: Callable[..., GatewayProcess]
) -> None:
    """Lost if red: what was said before a restart, for an interval of hours."""
    provider.default(ANSWER)
    say(stack.http(), SAID)
    gateway = make_gateway(PAL_MEMORY_DISTILL="1", PAL_EMBEDDINGS="off")
    until(lambda: stack.database.one(FACTS) == 1)
    assert gateway.stop() == 0
    assert stack.database.one(LEASES) == 0


def test_off_no_one_is_looked_for(make_stack: Callable[..., Stack], provider: FakeOpenAI) -> None:
    """Lost if red: an operator's word that nothing is distilled."""
    stack = make_stack(embeddings="off", memory_distill_interval=0.05)
    node = stack.another_node(sweeping=True, turn_lease=0.15)
    say(stack.http(), SAID)
    before = node.services.db.transactions
    # the sweep goes on beside it, so some rounds of a timer have gone by
    until(lambda: node.services.db.transactions > before + 6)
    assert stack.database.one("SELECT count(*) FROM pal.memory_passes") == 0
    assert provider.requests == []


def test_pass_goes_on_until_it_has_caught_up(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: a backlog, of which a slice is read in every interval of hours."""
    provider.default(NOTHING)
    say(stack.http(), *(f"{SAID} {n}" for n in range(120)))
    assert stack.node.run(stack.node.services.distill_due()) == 1
    assert len(provider.requests) > 100
    assert stack.database.rows("SELECT more FROM pal.memory_passes") == [(False,)]
    asked = len(provider.requests)
    stack.node.run(stack.node.services.distill_due())
    assert len(provider.requests) == asked


def test_trouble_of_one_tenant_is_not_the_others(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: every tenant's memory, for one whose material no model takes."""

    def answer(asked: Recorded) -> Reply:
        return Reply(status=500) if "poison" in json.dumps(asked.body) else ANSWER

    provider.default(answer)
    say(stack.http(), "poison")
    say(stack.http(stack.other_key), SAID)
    assert stack.node.run(stack.node.services.distill_due()) == 2
    assert stack.database.rows(OWNERS) == [(stack.other_tenant,)]
    failed = "SELECT tenant_id FROM pal.memory_passes WHERE failures > 0"
    assert stack.database.rows(failed) == [(stack.tenant,)]


def test_pass_does_not_hold_up_the_end_of_its_process(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: a deployment that waits minutes, or a tenant that waits for a lease to lapse."""
    held = Reply(hang=True)
    provider.script(held)
    provider.default(ANSWER)
    node = stack.another_node(sweeping=True)
    say(stack.http(), SAID)
    assert held.started.wait(10)
    assert stack.database.one(LEASES) == 1
    began = time.monotonic()
    node.run(node.services.stop())
    assert time.monotonic() - began < 5
    assert stack.database.one(LEASES) == 0
    assert stack.database.one("SELECT failures FROM pal.memory_passes") == 0
    # nothing was lost, and no one has to wait for it
    stack.node.run(stack.node.services.distill_due())
    assert stack.database.one(FACTS) == 1


def test_pass_of_a_caller_gives_its_lease_back_as_well(stack: Stack, provider: FakeOpenAI) -> None:
    """Lost if red: a tenant that waits for a lease to lapse, for a call at the wrong moment."""
    held = Reply(hang=True)
    provider.script(held)
    say(stack.http(), SAID)
    node = stack.another_node()
    calling = node.on.start(node.services.distill(stack.tenant))
    assert held.started.wait(10)
    node.run(node.services.stop())
    with pytest.raises(Unavailable):
        calling.result(5)
    assert stack.database.one(LEASES) == 0


def test_vectors_are_made_by_themselves(stack: Stack) -> None:
    """Lost if red: search by meaning, of all there was before it was switched on."""
    say(stack.http(), "The ferry leaves at nine.", "I like tea.")
    fact = {"content": "The office is closed on Fridays."}
    assert stack.http().call("POST", "/v1/memory/remember", fact).status == 201
    node = stack.another_node(sweeping=True, embeddings="wheel", memory_distill=False)
    if node.services.indexer is None or not node.run(node.services.indexer.ready()):
        pytest.skip("no weights, or no pgvector")
    progress = {"model": "wheel:l2_supercat_256", "done": 3, "total": 3}
    indexer = node.services.indexer
    until(lambda: node.run(indexer.progress(stack.tenant)) == progress)


# ── on AWS ───────────────────────────────────────────────────────────────────────────────────
class Queue:
    """An SQS queue, as moto plays it."""

    def __init__(self, endpoint: str) -> None:
        import boto3

        self._client = boto3.client("sqs", endpoint_url=endpoint)
        self.url = str(self._client.create_queue(QueueName="pal-test-memory")["QueueUrl"])

    def take(self) -> list[Any]:
        """The messages that wait; they are gone then."""
        found: list[Any] = []
        while True:
            answer = self._client.receive_message(QueueUrl=self.url, MaxNumberOfMessages=10)
            messages = answer.get("Messages", [])
            if not messages:
                return found
            for one in messages:
                found.append(json.loads(one["Body"]))
                self._client.delete_message(QueueUrl=self.url, ReceiptHandle=one["ReceiptHandle"])

    def close(self) -> None:
        """Close the connections."""
        self._client.close()


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    with aws_server(monkeypatch) as base:
        made = Queue(base)
        yield made
        made.close()


def invoke(name: str, event: Any = None) -> Any:
    """What a function of the app answers."""
    with Client(application.app) as client:
        if event is None:
            event = client.events.generate_cw_event(
                source="aws.events", detail_type="Scheduled Event", detail={}, resources=[]
            )
        else:
            event = client.events.generate_sqs_event([json.dumps(event)], queue_name="pal")
        return client.lambda_.invoke(name, event).payload


def test_tick_sends_who_is_due_to_the_queue(
    make_stack: Callable[..., Stack], queue: Queue, provider: FakeOpenAI
) -> None:
    """Lost if red: every pass on AWS."""
    stack = make_stack(memory_distill=True, embeddings="off", memory_queue_url=queue.url)
    assert invoke("memory_tick") == {"tenants": 0}
    assert queue.take() == []
    keys = [stack.key, *(stack.make_tenant(f"t{n}")[1] for n in range(11))]
    for key in keys:
        say(stack.http(key), SAID)
    assert invoke("memory_tick") == {"tenants": 12}
    sent = queue.take()
    assert {"tenantId": stack.tenant} in sent
    assert {"tenantId": stack.other_tenant} not in sent
    assert len({one["tenantId"] for one in sent}) == len(sent) == 12
    assert provider.requests == []

    provider.default(ANSWER)
    for message in sent:
        invoke("memory_worker", message)
    assert stack.database.one(FACTS) == 12
    assert queue.take() == []
    assert invoke("memory_tick") == {"tenants": 0}


def test_tick_that_is_off_touches_nothing(
    make_stack: Callable[..., Stack], queue: Queue, provider: FakeOpenAI
) -> None:
    """Lost if red: a database that is woken every minute by what is switched off."""
    stack = make_stack(embeddings="off", memory_queue_url=queue.url)
    say(stack.http(), SAID)
    begun = stack.node.services.db.transactions
    assert invoke("memory_tick") == {"tenants": 0}
    # nor does a message that was on its way when it was switched off
    invoke("memory_worker", {"tenantId": stack.tenant})
    assert stack.node.services.db.transactions == begun
    assert queue.take() == []
    assert provider.requests == []


def test_worker_sends_on_what_a_slice_leaves(
    make_stack: Callable[..., Stack], queue: Queue, provider: FakeOpenAI
) -> None:
    """Lost if red: a backlog that is read a slice a minute, or a worker that outlasts its time."""
    stack = make_stack(memory_distill=True, embeddings="off", memory_queue_url=queue.url)
    provider.default(NOTHING)
    say(stack.http(), *(f"{SAID} {n}" for n in range(60)))
    message = {"tenantId": stack.tenant}
    invoke("memory_worker", message)
    assert 0 < len(provider.requests) <= 50
    assert queue.take() == [message]
    invoke("memory_worker", message)
    assert queue.take() == []
    assert len(provider.requests) == 60


def test_worker_is_done_with_what_fails(
    make_stack: Callable[..., Stack], queue: Queue, provider: FakeOpenAI
) -> None:
    """Lost if red: a message that comes back again and again, and is paid for each time."""
    stack = make_stack(memory_distill=True, embeddings="off", memory_queue_url=queue.url)
    say(stack.http(), SAID)
    message = {"tenantId": stack.tenant}
    provider.default(Reply(status=500))
    invoke("memory_worker", message)
    assert stack.database.one("SELECT failures FROM pal.memory_passes") == 1
    # another process is at it
    stack.database.rows(
        "UPDATE pal.memory_passes SET lease = 'x', lease_until = now() + interval '1 minute'"
    )
    asked = len(provider.requests)
    invoke("memory_worker", message)
    assert len(provider.requests) == asked
    assert queue.take() == []
    assert stack.database.one(FACTS) == 0


def test_vectors_are_made_on_aws(stack: Stack) -> None:
    """Lost if red: search by meaning on AWS, of whatever came while no vector could be made."""
    say(stack.http(), "The ferry leaves at nine.", "I like tea.")
    assert invoke("memory_index") == {"vectors": 0}
    able = stack.another_node(embeddings="wheel")
    if able.services.indexer is None or not able.run(able.services.indexer.ready()):
        pytest.skip("no weights, or no pgvector")
    config.use(able.settings)
    services.use(able.services)
    bridge.lend(able.on.loop)
    assert invoke("memory_index") == {"vectors": 2}
    assert invoke("memory_index") == {"vectors": 0}
