"""The stream function's version, which its URL and its routes are at."""

import json
from pathlib import Path
from typing import Any

from scripts.deploying.versions import marked, values_of
from scripts.scanlib.expansion import expand
from tests.deploying.deployer import Deployer
from tests.fakes.aws_account import FakeAws
from tests.support.package import Package


def version(template: dict[str, Any], **given: str) -> str:
    """The id of the version that SAM makes of the template with these parameters."""
    values = values_of(template, given, {})
    made = {
        name: {**spec, "Default": values[name]} for name, spec in template["Parameters"].items()
    }
    resources = expand(marked({**template, "Parameters": made}, values))["Resources"]
    (found,) = [name for name, one in resources.items() if one["Type"] == "AWS::Lambda::Version"]
    return str(found)


def test_other_settings_and_layers_reach_the_stream_function(dev_package: Package) -> None:
    """Lost if red: other providers, origins or a mended library, on all that streams."""
    template = dev_package.template
    usual = version(template)
    assert version(template) == usual
    assert version(template, Providers="openai:gpt-5-mini") != usual
    other: dict[str, Any] = json.loads(json.dumps(template))
    other["Resources"]["ManagedLayer"]["Properties"]["ContentUri"] = "s3://bucket/other"
    assert version(other) != usual


def test_deployment_marks_what_is_behind_an_alias(
    deployer: Deployer, aws: FakeAws, tmp_path: Path
) -> None:
    """Lost if red: the mark, of which SAM's own hash knows nothing."""
    told = []
    for model in ("one", "two", "two"):
        deployer.deploy("code", alias="live", Providers=model)
        assert aws.stack is not None
        properties = json.loads(aws.stack["template"])["Resources"]["Migrate"]["Properties"]
        told.append(properties["Description"])
    assert told[0] != told[1] == told[2]
