"""Deploys packages of given content into an account in memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.deploying import destroy, rollout
from scripts.deploying.console import Console
from scripts.deploying.errors import DeployError
from scripts.deploying.stacks import Stack
from tests.fakes.aws_account import FakeAws

KEY = {"tenantId": "ten_1", "keyId": "key_1", "key": "pal_secret"}


def template(**more: Any) -> dict[str, Any]:
    """A packaged stack of the two functions that matter here."""
    function = {
        "Type": "AWS::Serverless::Function",
        "Properties": {"CodeUri": "./code.zip", "Layers": [{"Ref": "Layer"}]},
    }
    layer = {"Type": "AWS::Serverless::LayerVersion", "Properties": {"ContentUri": "./layer.zip"}}
    return {
        "Parameters": {"Stage": {"Type": "String", "Default": "dev"}, **more},
        "Resources": {"Bootstrap": function, "Migrate": function, "Layer": layer},
    }


class Deployer:
    """Deploys packages of given content; `smoke` is what is found when it is tried out."""

    def __init__(self, aws: FakeAws, folder: Path) -> None:
        self.aws, self.folder = aws, folder
        self.tried: list[str] = []
        self.smoke: DeployError | None = None
        self.asked: list[str] = []
        self.said = "y"

    def console(self) -> Console:
        def ask(question: str) -> str:
            self.asked.append(question)
            return self.said

        return Console(ask=ask)

    def stack(self) -> Stack:
        return Stack(self.aws.account(), "palimpsest-dev", sleep=lambda _: None)

    def deploy(self, code: str, layer: str = "layer", alias: str = "", **given: str) -> None:
        """Deploy a package of this content, functions behind the alias if one is named."""
        (self.folder / "code.zip").write_text(code)
        (self.folder / "layer.zip").write_text(layer)
        parameters = {name: {"Type": "String"} for name in given}
        made = template(**parameters)
        if alias:
            made["Resources"]["Migrate"]["Properties"]["AutoPublishAlias"] = alias
        rollout.deploy(
            self.aws.account(),
            "dev",
            made,
            self.folder,
            given=given,
            console=self.console(),
            stack=self.stack(),
            try_out=self._try_out,
        )

    def _try_out(self, outputs: Mapping[str, str], key: str) -> None:
        self.tried.append(self.running("Migrate"))
        assert outputs["StreamUrl"]
        assert key == KEY["key"]
        if self.smoke is not None:
            raise self.smoke

    def running(self, function: str) -> str:
        """The content of the code that a function runs."""
        assert self.aws.objects is not None
        return self.aws.objects[self.aws.code[function]["S3Key"]].decode()

    def destroy(self) -> None:
        destroy.destroy(self.aws.account(), "dev", self.console(), stack=self.stack())
