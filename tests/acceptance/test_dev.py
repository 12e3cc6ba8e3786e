"""`./scripts/dev` as a new user runs it: one command, from nothing."""

import asyncio
import base64
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from chalicelib.config import Secret, Settings
from chalicelib.vault import Vault
from tests.fakes.openai_server import FakeOpenAI, Reply
from tests.support.http import HttpClient, text_of
from tests.support.postgres import OLDEST, TestDatabase, free_port, oldest
from tests.support.skipping import skip_except_in_ci

READY = re.compile(r"ready (http://127\.0\.0\.1:\d+) key=(pal_\S+)")


class Dev:
    """A running `./scripts/dev`; `line` is what it printed first."""

    def __init__(self, root: Path, **settings: str) -> None:
        self._process = subprocess.Popen(
            ["./scripts/dev"],
            cwd=root,
            env={
                **{name: value for name, value in os.environ.items() if name[:4] != "PAL_"},
                # the suite's own environment is the one it would make
                "PAL_VENV": os.environ.get("VIRTUAL_ENV") or str(root / ".venv"),
                **settings,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self.line = self._process.stdout.readline()

    def client(self) -> HttpClient:
        """A client with the key that it printed."""
        found = READY.match(self.line)
        assert found, self.line + (self._process.stderr.read() if self._process.stderr else "")
        return HttpClient(found[1], found[2])

    def interrupt(self) -> None:
        """Ctrl-C: the whole process group gets the signal."""
        os.killpg(self._process.pid, signal.SIGINT)

    def wait(self) -> tuple[int, str]:
        """(exit code, what it said on standard error)."""
        _, said = self._process.communicate(timeout=60)
        return self._process.returncode, said

    def close(self) -> None:
        """Stop it, however it is."""
        if self._process.poll() is None:
            self.interrupt()
        self.wait()


@pytest.fixture
def settings() -> Iterator[dict[str, str]]:
    """A data folder and a port of its own."""
    with tempfile.TemporaryDirectory(prefix="pal-dev-", ignore_cleanup_errors=True) as folder:
        yield {"PAL_DATA_DIR": f"{folder}/data", "PAL_PORT": str(free_port())}


def run_pasted(text: str, settings: dict[str, str]) -> str:
    """What a shell prints when a person pastes this."""
    done = subprocess.run(
        ["bash", "-c", text],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def test_one_command_from_nothing_and_everything_is_there_again(
    root: Path, settings: dict[str, str]
) -> None:
    """Lost if red: the product's first five minutes, and what was said in them."""
    dev = Dev(root, **settings)
    try:
        client = dev.client()
        assert dev._process.stdout is not None
        assert "stand-in" in dev._process.stdout.readline()
        pasted = run_pasted(dev._process.stdout.readline(), settings)
        assert "event: message_completed" in pasted
        example = (root / "README.md").read_text().split("<!-- example -->")[1]
        pasted = run_pasted(example.split("```")[1].removeprefix("bash"), settings)
        assert pasted.count("event: message_completed") == 2
        assert '"content":"And again."' in pasted
        session = client.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]
        events = client.stream(
            "POST", f"/v1/sessions/{session}/messages", {"content": "Hello!"}
        ).rest()
        assert "stand-in" in text_of(events)  # it says plainly that it is no model
        said = client.call("GET", f"/v1/sessions/{session}").json["messages"]

        second = Dev(root, **settings)
        code, told = second.wait()
        assert code != 0
        assert len(told.strip().splitlines()) == 1
        assert "Traceback" not in told
        same_port = Dev(root, **{**settings, "PAL_DATA_DIR": settings["PAL_DATA_DIR"] + "2"})
        code, told = same_port.wait()
        assert code != 0
        assert "PAL_PORT" in told
        assert len(told.strip().splitlines()) == 1
    finally:
        dev.interrupt()
    assert dev.wait()[0] == 0
    assert not (Path(settings["PAL_DATA_DIR"]) / "postgres" / "postmaster.pid").exists()

    again = Dev(root, **settings)
    try:
        same = again.client()
        assert same.key == client.key
        assert same.call("GET", f"/v1/sessions/{session}").json["messages"] == said
    finally:
        again.close()


def test_ctrl_c_lets_a_running_turn_finish(
    root: Path, settings: dict[str, str], provider: FakeOpenAI
) -> None:
    """Lost if red: the answer that was being given when someone deployed."""
    dev = Dev(
        root,
        **settings,
        PAL_DEV_KEY="pal_mine",
        PAL_PROVIDERS="openai:fake",
        OPENAI_BASE_URL=provider.base_url,
        OPENAI_API_KEY="sk-fake",
    )
    try:
        client = dev.client()
        assert client.key == "pal_mine"
        session = client.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]
        slow = Reply(pieces=["to ", "the ", "end"], hold_at=1)
        provider.script(slow)
        stream = client.stream("POST", f"/v1/sessions/{session}/messages", {"content": "go"})
        stream.read_until("message_delta")
        dev.interrupt()
        slow.gate.set()
        end = stream.rest()[-1]
        assert (end.name, end.data["text"]) == ("message_completed", "to the end")
        assert dev.wait()[0] == 0
    finally:
        dev.close()


def test_existing_postgres_is_used_in_place_of_the_embedded_one(
    root: Path, settings: dict[str, str], database: TestDatabase
) -> None:
    """Lost if red: everyone who has a Postgres already."""
    dev = Dev(root, **settings, PAL_DATABASE_URL=database.master)
    try:
        client = dev.client()
        session = client.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]
        assert database.one("SELECT id FROM pal.sessions") == session
        assert not (Path(settings["PAL_DATA_DIR"]) / "postgres").exists()
        assert client.call("GET", "/healthz").json == {"status": "ok", "database": "ok"}
    finally:
        dev.close()


def test_secrets_are_kept_with_a_key_that_is_made_once(
    root: Path, settings: dict[str, str], database: TestDatabase
) -> None:
    """Lost if red: tenants' own keys on a laptop, without a word on how to encrypt them."""
    key = Path(settings["PAL_DATA_DIR"]) / "vault-key"
    seen = []
    for put in ("kept", "kept too"):
        dev = Dev(root, **settings, PAL_DATABASE_URL=database.master)
        try:
            client = dev.client()
            value = {"value": f"a secret to be {put}"}
            path = f"/v1/admin/secrets/{put.replace(' ', '-')}"
            assert client.call("PUT", path, value).status == 200
        finally:
            dev.close()
        assert key.stat().st_mode & 0o777 == 0o600
        seen.append(key.read_text().strip())
    assert seen[0] == seen[1] != ""
    vault = Vault(Settings(vault_key=Secret(seen[0])))
    rows = database.rows("SELECT tenant_id, name, sealed FROM pal.tenant_secrets ORDER BY name")
    opened = [
        asyncio.run(vault.open(bytes(sealed), tenant_id=tenant, kind="tool", name=name))
        for tenant, name, sealed in rows
    ]
    assert opened == ["a secret to be kept", "a secret to be kept too"]

    key.unlink()
    own = base64.b64encode(bytes(32)).decode()
    dev = Dev(root, **settings, PAL_DATABASE_URL=database.master, PAL_VAULT_KEY=own)
    try:
        dev.client()
    finally:
        dev.close()
    assert not key.exists(), "none is made where one is given"


def test_oldest_supported_postgres_will_do(root: Path, settings: dict[str, str]) -> None:
    """Lost if red: everyone whose Postgres is not the newest, or wants a password."""
    if OLDEST is None:
        skip_except_in_ci("there is no Postgres 15 (postgresql-15)")
    with (
        tempfile.TemporaryDirectory(prefix="pal-pg15-", ignore_cleanup_errors=True) as folder,
        oldest(Path(folder)) as url,
    ):
        for _ in range(2):  # the second time the logins are there already
            dev = Dev(root, **settings, PAL_DATABASE_URL=url)
            try:
                client = dev.client()
                session = client.call("POST", "/v1/sessions", {"agentName": "guide"}).json["id"]
                path = f"/v1/sessions/{session}/messages"
                events = client.stream("POST", path, {"content": "Hello!"}).rest()
                assert events[-1].name == "message_completed"
                assert client.call("GET", f"/v1/sessions/{session}").json["status"] == "active"
            finally:
                dev.close()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        pytest.param("PAL_TURN_LEASE", "soon", id="duration"),
        pytest.param("PAL_PROVIDERS", "nobody:model", id="provider"),
        pytest.param("PAL_VAULT_KEY", "too short", id="vault-key"),
        pytest.param("PAL_DATABASE_URL", "postgresql://nobody@127.0.0.1:1/x", id="database"),
    ],
)
def test_wrong_setting_is_told_in_one_sentence(
    root: Path, settings: dict[str, str], variable: str, value: str
) -> None:
    """Lost if red: the minutes it takes to find out what is wrong."""
    code, told = Dev(root, **{**settings, variable: value}).wait()
    assert code == 1
    assert variable in told
    assert len(told.strip().splitlines()) == 1
