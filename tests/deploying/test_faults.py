"""A deployment in which AWS, the network or a login does not last; and what is said then."""

from typing import Any

import pytest
from botocore.exceptions import EndpointConnectionError

from scripts.deploying.errors import DeployError
from tests.deploying.deployer import Deployer
from tests.fakes.aws_account import FakeAws, Refusal

NO_NETWORK = EndpointConnectionError(endpoint_url="https://cloudformation.example")


def answering(aws: FakeAws, call: str, *first: BaseException) -> None:
    """Have the first such calls raise these, and those after them answer as they would."""
    left = list(first)
    usual = getattr(aws, "_" + call.replace(".", "_"), lambda _: {})

    def answer(given: dict[str, Any]) -> Any:
        if left:
            raise left.pop(0)
        return usual(given)

    aws.answers[call] = answer


def test_functions_that_no_one_has_called_for_weeks_are_waited_for(
    deployer: Deployer, aws: FakeAws
) -> None:
    """Lost if red: each deployment, and each key, after a quiet month."""
    answering(
        aws,
        "lambda.Invoke",
        Refusal("ResourceNotReadyException", "The function is inactive", 502),
        Refusal("ResourceConflictException", "The function is Pending", 409),
    )
    deployer.deploy("one")
    assert deployer.tried == ["one"]
    assert aws.calls.count("lambda.GetFunction") == 2


def test_change_that_another_was_quicker_than_gives_migrate_its_old_code(
    deployer: Deployer, aws: FakeAws
) -> None:
    """Lost if red: a migrate function of one deployment in the stack of another."""
    deployer.deploy("one")
    answering(aws, "cloudformation.ExecuteChangeSet", Refusal("InvalidChangeSetStatus"))
    with pytest.raises(DeployError, match="was not changed"):
        deployer.deploy("two", layer="other layer")
    assert deployer.running("Migrate") == "one"


def test_network_that_comes_back_ends_no_wait(
    deployer: Deployer, aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lost if red: half an hour's deployment, left without its database for a closed laptop."""
    deployer.deploy("one")

    def execute(given: dict[str, Any]) -> None:
        aws._cloudformation_ExecuteChangeSet(given)
        answering(aws, "cloudformation.DescribeStacks", *[NO_NETWORK] * 3)

    aws.answers["cloudformation.ExecuteChangeSet"] = execute
    deployer.deploy("two")
    assert deployer.tried == ["one", "two"]
    assert "no network" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("fault", "sentence"),
    [
        pytest.param(Refusal("ExpiredToken"), "have expired", id="login"),
        pytest.param(NO_NETWORK, "out of reach", id="network"),
    ],
)
def test_wait_that_cannot_go_on_says_that_the_change_does(
    fault: Exception, sentence: str, deployer: Deployer, aws: FakeAws
) -> None:
    """Lost if red: a second deployment into the first, by someone who thinks that it has ended."""
    deployer.deploy("one")

    def execute(given: dict[str, Any]) -> None:
        aws._cloudformation_ExecuteChangeSet(given)
        for call in ("cloudformation.DescribeStacks", "lambda.DeleteLayerVersion"):
            answering(aws, call, *[fault] * 99)

    aws.answers["cloudformation.ExecuteChangeSet"] = execute
    with pytest.raises(DeployError, match=rf"{sentence}.*goes on at AWS"):
        deployer.deploy("two", layer="other layer")


def test_smoke_test_that_aws_cuts_short_says_what_serves(deployer: Deployer, aws: FakeAws) -> None:
    """Lost if red: what stands in the account, after a sentence about credentials alone."""
    deployer.deploy("one")

    def migrate(payload: dict[str, Any]) -> Any:
        if "keys" in payload:
            raise Refusal("ExpiredTokenException")
        return {"applied": []}

    aws.functions["Migrate"] = migrate
    with pytest.raises(DeployError, match=r"have expired.*new version, which was not tried out"):
        deployer.deploy("two")


def test_stack_that_never_came_to_be_is_told_with_the_way_out(
    deployer: Deployer, aws: FakeAws
) -> None:
    """Lost if red: the way out of a first deployment that failed, whose database is protected."""
    aws.rolls_back = True
    with pytest.raises(DeployError, match=r"ROLLBACK_COMPLETE.*--destroy dev"):
        deployer.deploy("one")


def test_deletion_whose_end_was_not_seen_is_tidied_up_later(
    deployer: Deployer, aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lost if red: layers and keys that no one knows of, for a login of half an hour."""
    gone = "arn:aws:cloudformation:eu-west-1:111122223333:stack/palimpsest-dev/1"
    kept = [
        ("Database", "AWS::RDS::DBCluster", "palimpsest-dev", "DELETE_COMPLETE"),
        ("VaultKey", "AWS::KMS::Key", "key-1", "DELETE_SKIPPED"),
        ("AlarmsKey", "AWS::KMS::Key", "key-2", "DELETE_COMPLETE"),
        ("Layer1", "AWS::Lambda::LayerVersion", "arn:aws:lambda:x:1:layer:l:2", "DELETE_SKIPPED"),
    ]
    named = ("LogicalResourceId", "ResourceType", "PhysicalResourceId", "ResourceStatus")
    summary = {"StackName": "palimpsest-dev", "StackId": gone, "StackStatus": "DELETE_COMPLETE"}
    aws.answers = {
        "cloudformation.ListStacks": lambda _: {"StackSummaries": [summary]},
        "cloudformation.ListStackResources": lambda given: {
            "StackResourceSummaries": [
                dict(zip(named, one, strict=True)) for one in kept if given["StackName"] == gone
            ]
        },
        "lambda.ListLayerVersions": lambda _: {"LayerVersions": [{"Version": 2}, {"Version": 1}]},
    }
    deployer.said = "dev"
    deployer.destroy()
    assert aws.calls.count("lambda.DeleteLayerVersion") == 2
    told = capsys.readouterr().out
    assert "no stack palimpsest-dev" in told
    assert "left: the snapshots of palimpsest-dev" in told
    assert "--key-id key-1" in told
    assert "key-2" not in told
