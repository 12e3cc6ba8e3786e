"""The stack as an emulator has it, beside the template; and work that goes through its queues.

Values are compared with the template's own, so that none stands here a second time. What the
emulator does not keep of a type is told by `kinds.yaml`, under `lost`.
"""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import app as application
from scripts.deploying.emulator import building, comparison
from scripts.deploying.emulator.building import Built
from scripts.deploying.emulator.kinds import KINDS
from scripts.deploying.emulator.place import Place
from scripts.deploying.emulator.server import Emulator
from scripts.deploying.errors import DeployError
from tests.aws.conftest import deploy
from tests.aws.queues import Queue, invoke
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.doors import ChaliceDoor
from tests.support.package import Package
from tests.support.stack import Stack

pytestmark = pytest.mark.timeout(300)

INTEGRATION = "x-amazon-apigateway-integration"
RETENTION = "MessageRetentionPeriod"
RESPONSES = "x-amazon-apigateway-gateway-responses"
API = "AWS::ApiGateway::RestApi"
STREAMING = "/2021-11-15/functions/"


def of_type(built: Built, kind: str) -> dict[str, dict[str, Any]]:
    """The properties of every resource of a type, worked out; there must be one."""
    found = {name: built.properties[name] for name in built.made if _type(built, name) == kind}
    assert found, f"the template has no {kind}"
    return found


def _type(built: Built, name: str) -> str | None:
    return built.resources[name]["Type"] if name in built.resources else None


def kept(place: Place, kind: str, properties: dict[str, Any], *names: str) -> dict[str, Any]:
    """Those properties that can be read back, as the template has them."""
    lost = KINDS[kind].get("lost", []) if place.emulator == "moto" else []
    return {name: properties[name] for name in names if name in properties and name not in lost}


# ── as written ───────────────────────────────────────────────────────────────────────────────
def test_functions_are_as_written(built: Built, place: Place) -> None:
    """Lost if red: that what was tried locally has the memory, time, layers and settings of AWS."""
    aws = place.client("lambda")
    names = ("Handler", "Runtime", "MemorySize", "Timeout", "Role", "Environment", "Architectures")
    for name, properties in of_type(built, "AWS::Lambda::Function").items():
        found = aws.get_function_configuration(FunctionName=built.made[name].ref)
        wanted = kept(place, "AWS::Lambda::Function", properties, *names)
        assert {key: found[key] for key in wanted} == wanted, name
        assert [one["Arn"] for one in found.get("Layers", [])] == properties.get("Layers", [])
        assert found["TracingConfig"]["Mode"] == properties["TracingConfig"]["Mode"]
        inside = properties.get("VpcConfig", {})
        assert {key: sorted(found["VpcConfig"][key]) for key in inside} == {
            key: sorted(value) for key, value in inside.items()
        }, name


def test_queues_have_their_dead_letters(built: Built, place: Place) -> None:
    """Lost if red: a message that fails again and again, or one that is set aside to nowhere."""
    aws, with_dead = place.client("sqs"), 0
    for name, properties in of_type(built, "AWS::SQS::Queue").items():
        found = aws.get_queue_attributes(QueueUrl=built.made[name].ref, AttributeNames=["All"])[
            "Attributes"
        ]
        wanted = kept(place, "AWS::SQS::Queue", properties, "VisibilityTimeout", RETENTION)
        assert {key: found[key] for key in wanted} == {k: str(v) for k, v in wanted.items()}, name
        redrive = properties.get("RedrivePolicy")
        assert json.loads(found.get("RedrivePolicy", "null")) == redrive, name
        if redrive:
            with_dead += 1
            dead = redrive["deadLetterTargetArn"].rpartition(":")[2]
            assert aws.get_queue_url(QueueName=dead)
    assert with_dead


def test_workers_take_from_their_queues(built: Built, place: Place) -> None:
    """Lost if red: turns and passes that no worker ever takes, or takes ten at once."""
    aws = place.client("lambda")
    for name, properties in of_type(built, "AWS::Lambda::EventSourceMapping").items():
        found = aws.get_event_source_mapping(UUID=built.made[name].ref)
        assert found["BatchSize"] == properties["BatchSize"]
        assert found["EventSourceArn"] == properties["EventSourceArn"]
        assert found["FunctionArn"].endswith(f":function:{properties['FunctionName']}")
        assert found.get("ScalingConfig", {}) == properties.get("ScalingConfig", {})


def test_schedules_wake_functions_that_let_them(built: Built, place: Place) -> None:
    """Lost if red: the sweep and the passes, which nothing else would start."""
    events, functions = place.client("events"), place.client("lambda")
    for name, properties in of_type(built, "AWS::Events::Rule").items():
        found = events.describe_rule(Name=built.made[name].ref)
        assert found["ScheduleExpression"] == properties["ScheduleExpression"]
        assert found["State"] == properties.get("State", "ENABLED")
        targets = events.list_targets_by_rule(Rule=built.made[name].ref)["Targets"]
        assert [one["Arn"] for one in targets] == [one["Arn"] for one in properties["Targets"]]
        for one in targets:
            policy = json.loads(functions.get_policy(FunctionName=one["Arn"])["Policy"])
            assert any(
                statement["Principal"] == {"Service": "events.amazonaws.com"}
                and found["Arn"] in json.dumps(statement["Condition"])
                for statement in policy["Statement"]
            ), name


def test_roles_allow_what_is_written_and_no_more(built: Built, place: Place) -> None:
    """Lost if red: least privilege, on the emulator at least."""
    aws = place.client("iam")
    for name, properties in of_type(built, "AWS::IAM::Role").items():
        role = built.made[name].ref
        trust = aws.get_role(RoleName=role)["Role"]["AssumeRolePolicyDocument"]
        assert trust == properties["AssumeRolePolicyDocument"], name
        found = {
            policy: aws.get_role_policy(RoleName=role, PolicyName=policy)["PolicyDocument"]
            for policy in aws.list_role_policies(RoleName=role)["PolicyNames"]
        }
        wanted = {
            one["PolicyName"]: one["PolicyDocument"] for one in properties.get("Policies", [])
        }
        assert found == wanted, name


def test_function_url_streams(built: Built, place: Place) -> None:
    """Lost if red: answers that come whole at their end, or that only IAM's callers get."""
    for name, properties in of_type(built, "AWS::Lambda::Url").items():
        target, qualifier = built.made[name].parts
        more = {"Qualifier": qualifier} if qualifier else {}
        found = place.client("lambda").get_function_url_config(FunctionName=target, **more)
        assert found["InvokeMode"] == properties["InvokeMode"] == "RESPONSE_STREAM"
        assert found["AuthType"] == properties["AuthType"]


def test_every_route_leads_where_it_is_written_to(built: Built, place: Place) -> None:
    """Lost if red: a route without a function, or a stream that the gateway holds back."""
    ((name, properties),) = of_type(built, API).items()
    pages = place.client("apigateway").get_paginator("get_resources")
    found = {}
    for page in pages.paginate(restApiId=built.made[name].ref, embed=["methods"]):
        for resource in page["items"]:
            for method, one in resource.get("resourceMethods", {}).items():
                found[resource["path"], method] = one["methodIntegration"]
    streaming = 0
    for path, methods in properties["Body"]["paths"].items():
        for method, said in methods.items():
            wanted = said[INTEGRATION]
            method = "ANY" if method == "x-amazon-apigateway-any-method" else method.upper()
            is_there = found.pop((path, method))
            assert is_there["uri"] == wanted["uri"], (path, method)
            assert is_there["type"].lower() == wanted["type"].lower()
            if STREAMING in wanted["uri"]:
                streaming += 1
                assert wanted["uri"].endswith("/response-streaming-invocations")
                assert wanted["responseTransferMode"] == "STREAM"
                for key, value in kept(place, API, wanted, "responseTransferMode").items():
                    assert is_there[key] == value
    assert streaming
    assert not found, "routes that the template does not have"


def test_gateway_answers_in_our_shape(built: Built, place: Place) -> None:
    """Lost if red: a client that cannot read what the gateway itself refuses."""
    ((name, properties),) = of_type(built, API).items()
    aws = place.client("apigateway")
    for kind, wanted in properties["Body"][RESPONSES].items():
        found = aws.get_gateway_response(restApiId=built.made[name].ref, responseType=kind)
        assert {key: found.get(key) for key in wanted} == wanted, kind


# ── a gap is told ────────────────────────────────────────────────────────────────────────────
def test_second_deployment_finds_all_of_the_first(
    built: Built, dev_package: Package, emulator: Emulator
) -> None:
    """Lost if red: a second `--local` that fails, or makes every function a second time."""
    again = deploy(dev_package, emulator)
    moving = {"AWS::ApiGateway::Deployment"}  # one is made each time, as it is on AWS
    same = {name for name in built.resources if built.resources[name]["Type"] not in moving}
    assert {name: again.made[name].ref for name in same} == {
        name: built.made[name].ref for name in same
    }


def test_function_that_is_gone_fails_the_comparison_by_its_name(built: Built, place: Place) -> None:
    """Lost if red: an emulator that says yes to all and makes nothing passes for AWS."""
    assert comparison.missing(built, place) == []
    aws = place.client("lambda")
    gone = built.made["Migrate"].ref
    aws.delete_function(FunctionName=gone)
    try:
        with pytest.raises(DeployError, match=r"Migrate \(AWS::Lambda::Function\)"):
            comparison.require_all(built, place)
    finally:
        building.MAKERS["AWS::Lambda::Function"](place, "Migrate", built.properties["Migrate"])


def test_type_that_no_one_thought_of_is_refused(built: Built, place: Place) -> None:
    """Lost if red: a resource of a new type, which the emulator would skip in silence."""
    odd = {"Resources": {"Odd": {"Type": "AWS::Odd::Thing"}}}
    values = building.Values(parameters={}, conditions={}, mappings={})
    with pytest.raises(DeployError, match="AWS::Odd::Thing"):
        building.build(odd, values, place, print)


# ── work ─────────────────────────────────────────────────────────────────────────────────────
@pytest.fixture
def aws_environment(emulator: Emulator, monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulator as AWS, for functions in this process."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{emulator.host}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", emulator.account().region)


@pytest.fixture
def turns(place: Place, built: Built, aws_environment: None) -> Queue:
    return Queue(place, built, "TurnsQueue")


@pytest.fixture
def passes(place: Place, built: Built, aws_environment: None) -> Queue:
    return Queue(place, built, "MemoryQueue")


def function_of(place: Place, arn: str) -> str:
    """Chalice's name of the function behind an ARN, by the handler that it is deployed with."""
    handler = place.client("lambda").get_function_configuration(FunctionName=arn)["Handler"]
    names = {
        one.handler_string: one.name
        for one in (*application.app.pure_lambda_functions, *application.app.event_sources)
    }
    return str(names[handler])


def worker_of(place: Place, queue: Queue) -> str:
    """The function that takes from a queue, as the service would find it."""
    mappings = place.client("lambda").list_event_source_mappings(EventSourceArn=queue.arn)
    (one,) = mappings["EventSourceMappings"]
    return function_of(place, one["FunctionArn"])


def test_queue_carries_a_turn_from_the_api_to_its_worker(
    make_stack: Callable[..., Stack], provider: FakeOpenAI, place: Place, turns: Queue
) -> None:
    """Lost if red: every turn on AWS that was not posted as a stream."""
    provider.default(Reply(pieces=["I am ", "here."]))
    stack = make_stack(turns_queue_url=turns.url, embeddings="off")
    door = ChaliceDoor(stack, stack.key)
    session = door.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]
    posted = door.call("POST", f"/v1/sessions/{session}/messages", {"content": "Are you there?"})
    assert posted.status == 202
    assert provider.requests == []
    assert turns.waiting() == 1

    assert turns.work(worker_of(place, turns)) == 1
    told = door.call("GET", f"/v1/sessions/{session}").json
    assert [one["content"] for one in told["messages"]] == ["Are you there?", "I am here."]
    assert told["status"] == "active"
    assert turns.waiting() == 0


def test_finished_or_busy_turn_deletes_its_message(
    make_stack: Callable[..., Stack], provider: FakeOpenAI, place: Place, turns: Queue
) -> None:
    """Lost if red: turns that are set aside as dead letters though someone answers them."""
    held = Reply(pieces=["He", "re."], hold_at=1)
    provider.script(held)
    stack = make_stack(turns_queue_url=turns.url, embeddings="off")
    door = ChaliceDoor(stack, stack.key)
    session = door.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]
    door.call("POST", f"/v1/sessions/{session}/messages", {"content": "Hello?"})
    running = stack.node.on.start(stack.node.services.engine.run_turn(stack.tenant, session))
    assert held.started.wait(10)
    worker = worker_of(place, turns)
    assert turns.work(worker) == 1
    assert turns.waiting() == 0

    held.gate.set()
    running.result(10)
    # a delivery that comes twice finds its turn finished
    turns.send({"tenantId": stack.tenant, "sessionId": session})
    assert turns.work(worker) == 1
    assert turns.waiting() == 0
    assert len(provider.requests) == 1


def test_schedule_runs_a_pass(
    make_stack: Callable[..., Stack],
    provider: FakeOpenAI,
    place: Place,
    built: Built,
    passes: Queue,
) -> None:
    """Lost if red: memory on AWS, from the rule to the facts."""
    fact = {"topic": "home city", "content": "Moved to Oslo.", "confidence": 0.9}
    provider.default(Reply(pieces=[json.dumps({"distillates": [fact]})]))
    stack = make_stack(
        memory_distill=True,
        memory_distill_interval=0.05,
        memory_queue_url=passes.url,
        embeddings="off",
    )
    event = {
        "channel": "chat",
        "kind": "message",
        "direction": "in",
        "content": "I moved to Oslo.",
        "occurredAt": "2026-01-05T10:00:00Z",
        "person": {"channel": "user", "handle": "kim"},
    }
    door = ChaliceDoor(stack, stack.key)
    assert door.call("POST", "/v1/memory/events", {"events": [event]}).status == 200

    # what each of the rules wakes, with the event that EventBridge sends
    woken = list(_wake_all(place, built))
    assert "memory_tick" in woken
    assert passes.work(worker_of(place, passes)) >= 1
    told = door.call("GET", "/v1/memory/distillates").json
    assert [one["content"] for one in told["distillates"]] == ["Moved to Oslo."]


def _wake_all(place: Place, built: Built) -> Iterator[str]:
    events = place.client("events")
    for name in of_type(built, "AWS::Events::Rule"):
        rule = events.describe_rule(Name=built.made[name].ref)
        for target in events.list_targets_by_rule(Rule=rule["Name"])["Targets"]:
            function = function_of(place, target["Arn"])
            scheduled = {
                "version": "0",
                "id": "1",
                "source": "aws.events",
                "detail-type": "Scheduled Event",
                "account": "123456789012",
                "time": "2026-12-01T00:00:00Z",
                "region": "eu-central-1",
                "resources": [rule["Arn"]],
                "detail": {},
            }
            invoke(function, scheduled)
            yield function
