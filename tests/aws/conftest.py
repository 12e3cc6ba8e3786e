"""The packaged stack, deployed once to LocalStack or to a moto server of this run's own."""

import os
from collections.abc import Iterator

import pytest

from scripts.deploying.emulator import local, server
from scripts.deploying.emulator.building import Built
from scripts.deploying.emulator.place import Place
from tests.support.package import Package
from tests.support.postgres import free_port


@pytest.fixture(scope="session")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[server.Emulator]:
    """LocalStack where LOCALSTACK_HOST answers; else moto's server, as a process of its own.

    In this process moto's servers share what they hold, and other tests empty theirs.
    """
    if os.environ.get("LOCALSTACK_HOST") and (found := server.find(server.address())):
        yield found
        return
    folder = tmp_path_factory.mktemp("moto")
    host = f"127.0.0.1:{free_port()}"
    try:
        yield server.start_moto(host, folder, print)
    finally:
        server.stop_moto(host, folder)


@pytest.fixture(scope="session")
def place(emulator: server.Emulator) -> Place:
    """Where the stack is."""
    return local.place_of("dev", emulator, emulator.account())


@pytest.fixture(scope="session")
def built(dev_package: Package, emulator: server.Emulator) -> Built:
    """What `scripts/deploy --local` has made there."""
    return deploy(dev_package, emulator)


def deploy(package: Package, emulator: server.Emulator) -> Built:
    """Make or update the stack there."""
    return local.deploy(
        package.template, package.folder, stage="dev", emulator=emulator, given={}, say=print
    )
