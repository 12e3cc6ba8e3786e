"""The command itself: what it is told wrongly, and where it may not begin."""

from pathlib import Path

import pytest

from scripts.deploying.__main__ import main
from scripts.deploying.emulator import server
from tests.support.postgres import free_port


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        pytest.param(["--stop"], "--stop goes with --local", id="stop-alone"),
        pytest.param(["--param", "Egress"], "takes KEY=VALUE", id="parameter"),
        pytest.param(["dev"], "No region is set", id="no-region"),
        pytest.param(["--region", "eu-west-1"], "no AWS credentials", id="no-credentials"),
        pytest.param(["--local"], "must be host:port", id="no-address"),
    ],
)
def test_what_cannot_begin_is_one_sentence(
    arguments: list[str],
    sentence: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Lost if red: a traceback at the first command that someone tries."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE", "AWS_ACCESS_KEY_ID"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path_factory.getbasetemp() / "none"))
    monkeypatch.setenv("LOCALSTACK_HOST", "localhost:many")
    assert main(arguments) == 1
    told = capsys.readouterr().err
    assert sentence in told
    assert told.count("\n") == 1


def test_server_that_was_started_is_ended(tmp_path: Path) -> None:
    """Lost if red: a server that runs on after `--stop`, or someone else's that is ended by it."""
    host = f"127.0.0.1:{free_port()}"
    assert server.find(host) is None
    assert server.start_moto(host, tmp_path, print).kind == "moto"
    elsewhere = f"127.0.0.1:{free_port()}"
    assert not server.stop_moto(elsewhere, tmp_path)
    assert server.find(host) is not None
    assert server.stop_moto(host, tmp_path)
    assert server.find(host) is None
    assert not server.stop_moto(host, tmp_path)
