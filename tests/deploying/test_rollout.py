"""A deployment's order of steps, and what serves when one of them fails."""

import json
from typing import Any

import pytest

from scripts.deploying.console import Console
from scripts.deploying.errors import DeployError, explain
from tests.deploying.deployer import KEY, Deployer
from tests.fakes.aws_account import FakeAws, Refusal


def steps(aws: FakeAws) -> list[str]:
    """What was changed, without the bucket's own settings."""
    return [one for one in aws.changing() if not one.startswith("s3.PutBucket")]


def test_first_deployment_makes_the_database_when_the_stack_stands(
    deployer: Deployer, aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lost if red: a first deployment, which has no function to migrate with before its stack."""
    deployer.deploy("one")
    assert steps(aws) == [
        "s3.CreateBucket",
        "s3.PutPublicAccessBlock",
        *["s3.PutObject"] * 3,
        "cloudformation.CreateChangeSet",
        "cloudformation.ExecuteChangeSet",
        "lambda.Invoke",  # bootstrap
        "lambda.Invoke",  # migrate
        "lambda.Invoke",  # a key to try out with
        "lambda.Invoke",  # revoked
    ]
    assert deployer.tried == ["one"]
    out = capsys.readouterr().out
    assert "0001_sessions" in out
    assert "pal_secret" not in out


def test_bucket_is_closed_to_all_but_us(deployer: Deployer, aws: FakeAws) -> None:
    """Lost if red: the code and the templates of an account, to whoever finds the bucket."""
    asked: dict[str, dict[str, Any]] = {}
    for call in ("PutPublicAccessBlock", "PutBucketPolicy", "PutBucketVersioning"):
        aws.answers[f"s3.{call}"] = lambda given, call=call: asked.update({call: given})
    deployer.deploy("one")
    block = asked["PutPublicAccessBlock"]["PublicAccessBlockConfiguration"]
    assert len(block) == 4
    assert all(block.values())
    (statement,) = json.loads(asked["PutBucketPolicy"]["Policy"])["Statement"]
    assert statement["Effect"] == "Deny"
    assert statement["Condition"] == {"Bool": {"aws:SecureTransport": "false"}}
    assert asked["PutBucketVersioning"]["VersioningConfiguration"]["Status"] == "Enabled"
    # a stranger's bucket of the same name is not written to
    assert {one["ExpectedBucketOwner"] for one in asked.values()} == {aws.account_id}
    assert "s3.PutBucketEncryption" in aws.calls


def test_migrations_run_with_the_new_code_before_traffic_shifts(
    deployer: Deployer, aws: FakeAws
) -> None:
    """Lost if red: new code that serves beside a schema which it does not know yet."""
    deployer.deploy("one")
    seen = []

    def migrate(payload: dict[str, Any]) -> Any:
        if "keys" not in payload:
            assert aws.stack is not None
            status = "cloudformation.ExecuteChangeSet" in aws.calls
            seen.append((deployer.running("Migrate"), aws.code["Migrate"]["layers"], status))
        return KEY

    aws.functions["Migrate"] = migrate
    aws.calls.clear()
    deployer.deploy("two", layer="other layer")
    ((code, layers, shifted),) = seen
    assert (code, shifted) == ("two", False)
    assert all(one.endswith(":7") for one in layers), "with the layer that the new code wants"
    assert deployer.tried == ["one", "two"]
    # the layers that were made for it are not left
    assert aws.calls.count("lambda.DeleteLayerVersion") == aws.calls.count(
        "lambda.PublishLayerVersion"
    )


def test_failed_migration_leaves_the_old_code_serving(deployer: Deployer, aws: FakeAws) -> None:
    """Lost if red: service, for a migration that does not fit."""
    deployer.deploy("one")
    before = json.loads(json.dumps([aws.stack, aws.code]))

    def migrate(payload: dict[str, Any]) -> Any:
        raise RuntimeError("column exists")

    aws.functions["Migrate"] = migrate
    aws.calls.clear()
    with pytest.raises(DeployError, match="column exists"):
        deployer.deploy("two", layer="other layer")
    assert [aws.stack, aws.code] == before
    assert deployer.running("Migrate") == deployer.running("Bootstrap") == "one"
    assert "cloudformation.ExecuteChangeSet" not in aws.calls
    assert "cloudformation.DeleteChangeSet" in aws.calls


def test_update_that_cloudformation_rolls_back_gives_migrate_its_old_code(
    deployer: Deployer, aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lost if red: a migrate function that stays ahead of all others."""
    deployer.deploy("one")
    aws.rolls_back = True
    with pytest.raises(DeployError, match="UPDATE_ROLLBACK_COMPLETE"):
        deployer.deploy("two")
    assert deployer.running("Migrate") == "one"
    assert "UPDATE_FAILED" in (out := capsys.readouterr().out)
    assert "no such role" in out


def test_failed_smoke_test_goes_back_to_the_old_template(deployer: Deployer, aws: FakeAws) -> None:
    """Lost if red: a version that answers no one, until someone notices."""
    deployer.deploy("one", Providers="openai:good")
    assert aws.stack is not None
    before = dict(aws.stack)
    deployer.smoke = DeployError("POST .../messages answered 502.")
    with pytest.raises(DeployError, match=r"answered 502.*back at its old template"):
        deployer.deploy("two", Providers="openai:bad")
    assert deployer.tried == ["one", "two"]
    assert deployer.running("Migrate") == "one"
    assert aws.stack["template"] == before["template"]
    assert aws.stack["Parameters"] == before["Parameters"]


def test_key_for_the_smoke_test_is_revoked_whatever_comes(deployer: Deployer, aws: FakeAws) -> None:
    """Lost if red: a key of every deployment, valid for ever."""
    orders: list[Any] = []

    def migrate(payload: dict[str, Any]) -> Any:
        orders.append(payload)
        return KEY

    aws.functions["Migrate"] = migrate
    deployer.smoke = DeployError("no.")
    with pytest.raises(DeployError, match="nothing older"):
        deployer.deploy("one")
    assert orders[-2]["keys"]["create"]["scopes"] == ["sessions"]
    assert orders[-1] == {"keys": {"revoke": {"tenantId": "ten_1", "keyId": "key_1"}}}


def test_nothing_changes_without_a_yes(deployer: Deployer, aws: FakeAws) -> None:
    """Lost if red: a change that no one has agreed to."""
    deployer.said = "n"
    deployer.deploy("one")
    assert "cloudformation.ExecuteChangeSet" not in aws.calls
    assert aws.stack is None
    assert len(deployer.asked) == 1


def test_nothing_is_left_where_no_one_answers(deployer: Deployer, aws: FakeAws) -> None:
    """Lost if red: a stack in review and a change set, of every job that forgot --yes."""

    def no_one(_: str) -> str:
        raise EOFError

    deployer.console = lambda: Console(ask=no_one)  # type: ignore[method-assign]
    with pytest.raises(DeployError, match="No one is there"):
        deployer.deploy("one")
    assert aws.stack is None


def test_unchanged_stack_still_has_its_database_looked_after(
    deployer: Deployer, aws: FakeAws
) -> None:
    """Lost if red: the way out of a first deployment whose bootstrap failed."""
    deployer.deploy("one")
    aws.calls.clear()
    deployer.deploy("one")
    assert "cloudformation.ExecuteChangeSet" not in aws.calls
    assert aws.calls.count("lambda.Invoke") == 4
    assert len(deployer.asked) == 1


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        pytest.param("ROLLBACK_COMPLETE", "--destroy dev", id="never-whole"),
        pytest.param("UPDATE_ROLLBACK_FAILED", "continue-update-rollback", id="stuck"),
        pytest.param("UPDATE_IN_PROGRESS", "wait", id="busy"),
    ],
)
def test_stack_that_takes_no_update_is_told_with_what_to_do(
    status: str, sentence: str, deployer: Deployer, aws: FakeAws
) -> None:
    """Lost if red: an hour with CloudFormation's console."""
    aws.stack = {"StackStatus": status, "Outputs": [], "Parameters": []}
    with pytest.raises(DeployError, match=sentence):
        deployer.deploy("one")
    assert aws.changing() == []


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        pytest.param("ExpiredToken", "have expired", id="expired"),
        pytest.param("ThrottlingException", "throttles", id="throttled"),
        pytest.param("AccessDenied", "may not do DescribeStacks", id="denied"),
    ],
)
def test_what_aws_refuses_is_one_sentence(
    code: str, sentence: str, deployer: Deployer, aws: FakeAws
) -> None:
    """Lost if red: a traceback in place of what to do."""

    def refuse(_: dict[str, Any]) -> Any:
        raise Refusal(code)

    aws.answers["cloudformation.DescribeStacks"] = refuse
    with pytest.raises(Exception) as caught:  # noqa: PT011
        deployer.deploy("one")
    told = explain(caught.value)
    assert told is not None
    assert sentence in told
    assert "\n" not in told


# ── destroying ───────────────────────────────────────────────────────────────────────────────
def test_destroying_wants_the_stages_name(deployer: Deployer, aws: FakeAws) -> None:
    """Lost if red: everything, for a y typed by habit."""
    deployer.deploy("one")
    aws.calls.clear()
    for deployer.said in ("y", "yes", "prod", ""):
        deployer.destroy()
    assert aws.changing() == []


def test_destroying_leaves_snapshots_and_their_key_and_says_so(
    deployer: Deployer, aws: FakeAws, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lost if red: a bill for what no one knows of, or a snapshot that never opens again."""
    deployer.deploy("one")
    assert aws.stack is not None
    stored = json.loads(aws.stack["template"])
    stored["Resources"]["Database"] = {"Type": "AWS::RDS::DBCluster"}
    stored["Resources"]["DatabaseKey"] = {"Type": "AWS::KMS::Key"}
    aws.stack["template"] = json.dumps(stored)
    aws.calls.clear()
    deployer.said = "dev"
    deployer.destroy()
    assert steps(aws)[:2] == ["rds.ModifyDBCluster", "cloudformation.DeleteStack"]
    assert aws.objects == {}
    assert "s3.DeleteBucket" in aws.calls
    out = capsys.readouterr().out
    assert "left: the snapshots of Database" in out
    assert "schedule-key-deletion --key-id DatabaseKey" in out
