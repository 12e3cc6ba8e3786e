"""The microVMs' image: what is uploaded for it, and that the stack and the roles mean the same."""

import json
import re
import zipfile
from pathlib import Path
from typing import Any

import boto3
import pytest
import yaml

from infra.microvm import build
from scripts.deploying.account import on_aws
from scripts.deploying.artifacts import Bucket
from tests.fakes.microvm_agent import dockerfile
from tests.support.aws import aws_server

ROOT = Path(__file__).parents[2]


class _Loader(yaml.SafeLoader):
    """Leaves CloudFormation's short forms as what they are given."""


_LOADER_READS: dict[type[yaml.Node], Any] = {
    yaml.ScalarNode: yaml.SafeLoader.construct_scalar,
    yaml.SequenceNode: yaml.SafeLoader.construct_sequence,
    yaml.MappingNode: yaml.SafeLoader.construct_mapping,
}
_Loader.add_multi_constructor(
    "!", lambda loader, suffix, node: _LOADER_READS[type(node)](loader, node)
)


def stack() -> dict[str, Any]:
    """infra/microvm.yaml."""
    return dict(yaml.load((ROOT / "infra/microvm.yaml").read_text(encoding="utf-8"), _Loader))


def test_the_code_is_whole_and_the_same_each_time(tmp_path: Path) -> None:
    """Lost if red: an image that cannot be built, or a new version of it with every deployment."""
    first, second = (build.pack(tmp_path / name / "code.zip") for name in ("a", "b"))
    assert first.read_bytes() == second.read_bytes()
    names = set(zipfile.ZipFile(first).namelist())
    agent = ROOT / "infra/microvm/agent"
    assert names == {"Dockerfile"} | {f"agent/{path.name}" for path in agent.glob("*.py")}


def test_the_code_is_uploaded_once_for_its_stage(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Lost if red: `scripts/deploy dev --param "$(infra/microvm/build dev)"`."""
    code = build.pack(tmp_path / "code.zip")
    with aws_server(monkeypatch):
        # moto holds requests against the bucket's policy, and speaks no TLS
        bucket = Bucket(on_aws("eu-central-1"), "dev", tls=False)
        name, _, uri = build.upload(code, bucket).partition("=")
        assert build.upload(code, bucket) == f"{name}={uri}"
        assert name in stack()["Parameters"]
        holder, _, key = uri.removeprefix("s3://").partition("/")
        s3 = boto3.client("s3")
        assert s3.get_object(Bucket=holder, Key=key)["Body"].read() == code.read_bytes()
        (kept,) = s3.list_object_versions(Bucket=holder)["Versions"]
        assert kept["Key"] == key
        assert re.fullmatch(stack()["Parameters"][name]["AllowedPattern"], uri)


def test_the_image_has_what_its_agent_is_told() -> None:
    """Lost if red: hooks that AWS calls in vain, or an agent that takes more than there is."""
    env, _ = dockerfile()
    image = stack()["Resources"]["MicrovmImage"]["Properties"]
    assert image["Hooks"]["Port"] == int(env["PAL_AGENT_HOOKS_PORT"])
    memory = image["Resources"][0]["MinimumMemoryInMiB"] << 20
    assert int(env["PAL_AGENT_MEMORY"]) == memory * 3 // 4
    text = (ROOT / "infra/microvm/agent/hooks.py").read_text(encoding="utf-8")
    on = [
        hook.lower()
        for hooks in (image["Hooks"]["MicrovmImageHooks"], image["Hooks"]["MicrovmHooks"])
        for hook, state in hooks.items()
        if state == "ENABLED"
    ]
    assert on == ["ready", "validate", "run", "resume"]
    assert all(f'"{hook}"' in text for hook in on)


@pytest.mark.parametrize(
    ("function", "may"),
    [
        (
            "stream",
            "RunMicrovm GetMicrovm CreateMicrovmAuthToken ResumeMicrovm TerminateMicrovm "
            "PassNetworkConnector",
        ),
        (
            "turn_worker",
            "RunMicrovm GetMicrovm CreateMicrovmAuthToken ResumeMicrovm TerminateMicrovm "
            "PassNetworkConnector",
        ),
        ("api_handler", "TerminateMicrovm"),
        ("sweep", "TerminateMicrovm ListMicrovms"),
        ("memory_worker", ""),
    ],
)
def test_a_role_may_do_what_its_function_does(function: str, may: str) -> None:
    """Lost if red: turns without VMs, or a function that can start VMs with the internet."""
    policy = json.loads((ROOT / f".chalice/policy-{function}.json").read_text(encoding="utf-8"))
    allowed: dict[str, Any] = {
        action.removeprefix("lambda:"): statement["Resource"]
        for statement in policy["Statement"]
        for action in statement["Action"]
        if "icrovm" in action or "Connector" in action
    }
    assert list(allowed) == may.split()
    name = stack()["Resources"]["MicrovmImage"]["Properties"]["Name"]
    for action, resource in allowed.items():
        if action == "ListMicrovms":
            assert resource == "*"
        elif action == "PassNetworkConnector":
            assert "INTERNET" not in json.dumps(resource)
            assert "aws-network-connector:*" not in json.dumps(resource)
        else:
            assert resource["Fn::Sub"].endswith(f":microvm-image:{name}")
