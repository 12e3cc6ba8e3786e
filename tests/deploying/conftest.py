"""An account in memory, and what deploys to it."""

from pathlib import Path
from typing import Any

import pytest

from tests.deploying.deployer import KEY, Deployer
from tests.fakes.aws_account import FakeAws


@pytest.fixture
def aws() -> FakeAws:
    made = FakeAws()

    def migrate(payload: dict[str, Any]) -> Any:
        return KEY if "keys" in payload else {"applied": ["0001_sessions"]}

    made.functions = {"Migrate": migrate, "Bootstrap": lambda _: {"bootstrapped": True}}
    return made


@pytest.fixture
def deployer(aws: FakeAws, tmp_path: Path) -> Deployer:
    return Deployer(aws, tmp_path)
