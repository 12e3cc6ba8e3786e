"""Fixtures of the whole suite: a real Postgres, a fake provider, the system in this process."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chalicelib.isolation import DRIVERS
from tests.fakes.machines import Cloud, ScriptedDriver
from tests.fakes.openai_server import FakeOpenAI
from tests.support.calls import FOLDER, keep_calls
from tests.support.doors import ChaliceDoor, Door, HttpDoor, StreamDoor
from tests.support.package import Package, Unpacked, copy_checkout, make_package, unpack
from tests.support.postgres import (
    Cluster,
    TestDatabase,
    cluster,
    fast_folder,
    find_pgbouncer,
)
from tests.support.process import GatewayProcess
from tests.support.skipping import skip_except_in_ci
from tests.support.stack import Stack


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pooler", action="store_true", help="reach the database through PgBouncer")


def pytest_configure() -> None:
    """In each worker, where scripts/test wants to know what is asked of AWS."""
    if folder := os.environ.get(FOLDER):
        keep_calls(Path(folder))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Under --pooler, only what reaches the suite's database runs once more."""
    if config.getoption("--pooler"):
        reaching = [one for one in items if "postgres" in getattr(one, "fixturenames", ())]
        others = [one for one in items if "postgres" not in getattr(one, "fixturenames", ())]
        config.hook.pytest_deselected(items=others)
        items[:] = reaching


@pytest.fixture(scope="session")
def postgres(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The suite's server, with a pooler before it under --pooler.

    In a folder of its own: pytest closes its temporary folder to other users whenever a run
    starts, and the server is another user where the suite runs as root.
    """
    pooled = request.config.getoption("--pooler")
    if pooled and find_pgbouncer() is None:
        skip_except_in_ci("pgbouncer is missing")
    with (
        tempfile.TemporaryDirectory(
            prefix="pal-pg-", dir=fast_folder(), ignore_cleanup_errors=True
        ) as folder,
        cluster(Path(folder), pooled=pooled) as made,
    ):
        yield made


@pytest.fixture
def database(postgres: Cluster) -> Iterator[TestDatabase]:
    """A fresh, migrated database."""
    made = postgres.create()
    yield made
    postgres.drop(made)


@pytest.fixture
def provider() -> Iterator[FakeOpenAI]:
    """A provider that echoes unless a test scripts it."""
    with FakeOpenAI() as fake:
        yield fake


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """Where `isolation="scripted"` has sessions' microVMs."""
    made = Cloud()
    monkeypatch.setitem(DRIVERS, "scripted", lambda settings: ScriptedDriver(made))
    return made


@pytest.fixture
def make_stack(database: TestDatabase, provider: FakeOpenAI) -> Iterator[Callable[..., Stack]]:
    """Makes the system with other settings than the usual ones."""
    made: list[Stack] = []

    def make(**changes: Any) -> Stack:
        made.append(Stack(database, provider.base_url, **changes))
        return made[-1]

    yield make
    for stack in made:
        stack.close()


@pytest.fixture
def stack(make_stack: Callable[..., Stack]) -> Stack:
    """The system as it usually is."""
    return make_stack()


@pytest.fixture
def make_gateway(
    database: TestDatabase, provider: FakeOpenAI
) -> Iterator[Callable[..., GatewayProcess]]:
    """Starts gateways as processes of their own on the test's database; settings by variable."""
    made: list[GatewayProcess] = []

    def make(**settings: str) -> GatewayProcess:
        made.append(GatewayProcess(database, provider.base_url, **settings))
        return made[-1]

    yield make
    for gateway in made:
        gateway.stop()


@pytest.fixture(params=["http", "chalice", "function-url", "rest-api"])
def door(request: pytest.FixtureRequest, stack: Stack) -> Door:
    """Each way in, in turn, with the first tenant's key."""
    return open_door(request.param, stack, stack.key)


def open_door(kind: str, stack: Stack, key: str) -> Door:
    """One way in: the gateway, Chalice's test client, or the stream handler by its two events."""
    if kind == "http":
        return HttpDoor(stack, key)
    if kind == "chalice":
        return ChaliceDoor(stack, key)
    return StreamDoor(stack, key, version="2.0" if kind == "function-url" else "1.0")


@pytest.fixture(scope="session")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's files, which nothing is run in."""
    return copy_checkout(tmp_path_factory.mktemp("source") / "checkout")


@pytest.fixture(scope="session")
def dev_package(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Package:
    """The package of stage `dev`, made once a run."""
    return make_package("dev", checkout, tmp_path_factory.mktemp("dev"))


@pytest.fixture(scope="session")
def unpacked(dev_package: Package, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Unpacked]:
    """That package as Lambda lays it out; tests only read it."""
    folder = tmp_path_factory.mktemp("lambda")
    yield unpack(dev_package, folder)
    shutil.rmtree(folder)


@pytest.fixture
def root() -> Path:
    """The checkout's folder."""
    return Path(__file__).parents[1]
