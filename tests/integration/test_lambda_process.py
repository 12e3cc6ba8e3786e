"""The Lambda loop as a process: how it is started, how it says that it cannot, how it ends."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.fakes.runtime_api import FakeRuntimeApi, patiently
from tests.support.lambda_api import with_api

ROOT = Path(__file__).parents[2]
BOOTSTRAP = ROOT / "chalicelib/stream/bootstrap"
HANDLER = "tests.fakes.stream_handler:handler"


@asynccontextmanager
async def process(
    api: FakeRuntimeApi, handler: str = HANDLER
) -> AsyncIterator[asyncio.subprocess.Process]:
    """The loop in a process of its own; stdout and stderr are pipes."""
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "chalicelib.stream.runtime", handler),
        cwd=ROOT,
        env={**os.environ, "AWS_LAMBDA_RUNTIME_API": api.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield child
    finally:
        if child.returncode is None:
            child.kill()
        await child.communicate()


@with_api
async def test_sigterm_lets_the_invocation_finish(api: FakeRuntimeApi) -> None:
    """A shutdown in mid-reply would cut the reader off and lose the work after the reply."""
    call = api.invoke({"want": "terminate"})
    async with process(api) as child:
        _, first, second = await call.body()
        await call.closed()
        out, _ = await patiently(child.communicate())
    assert (first, second[:10]) == (b"data: pid %d\n\n" % child.pid, b"data: fini")
    assert out == b"finished request-1\n"
    assert (child.returncode, api.asked) == (0, 1)


@with_api
async def test_sigterm_ends_a_waiting_loop(api: FakeRuntimeApi) -> None:
    """Every idle function would have to be killed, and look like a crash."""
    call = api.invoke({"want": "events"})
    async with process(api) as child:
        await call.closed()
        while api.asked < 2:
            await api.round_trip()
        child.terminate()
        assert await patiently(child.wait()) == 0


@pytest.mark.parametrize(
    ("handler", "error_type"),
    [
        pytest.param("tests.fakes.no_such:handler", "ModuleNotFoundError", id="no-module"),
        pytest.param("tests.fakes.stream_handler:nobody", "AttributeError", id="no-function"),
        pytest.param("tests.fakes.stream_handler:SECRET", "TypeError", id="not-a-function"),
    ],
)
@with_api
async def test_failed_start_is_reported(api: FakeRuntimeApi, handler: str, error_type: str) -> None:
    """A function that cannot start would time out, start over and never say why."""
    async with process(api, handler) as child:
        head, body = await api.init_error()
        _, err = await patiently(child.communicate())
    assert head.method == "POST"
    assert head.values("Lambda-Runtime-Function-Error-Type") == [f"Runtime.{error_type}"]
    assert json.loads(body) == {
        "errorMessage": "The function could not start; its log says why.",
        "errorType": error_type,
        "stackTrace": [],
    }
    assert error_type.encode() in err
    assert (child.returncode, api.asked) == (1, 0)


@pytest.mark.parametrize(
    ("command", "interpreter"),
    [
        pytest.param(["lang/python3.12", "/var/runtime/bootstrap.py"], "python3.12", id="lambdas"),
        pytest.param([], "python3.11", id="none-given"),
        pytest.param(["/bin/sh", "/var/runtime/bootstrap"], "python3.11", id="not-a-python"),
    ],
)
def test_wrapper_takes_lambdas_interpreter_and_the_layer(
    tmp_path: Path, command: list[str], interpreter: str
) -> None:
    """The deployed function would not find its dependencies, or its metrics would never appear."""
    task = tmp_path / "task"
    wrapper = task / "chalicelib/stream/bootstrap"
    for stub in (tmp_path / "lang/python3.12", tmp_path / "bin/python3.11", wrapper):
        stub.parent.mkdir(parents=True)
        stub.write_text('#!/bin/sh\necho "${0##*/} $PWD $PYTHONPATH $PYTHONUNBUFFERED $*"\n')
        stub.chmod(0o755)
    shutil.copy(BOOTSTRAP, wrapper)
    layer = f"/opt/python:/opt/python/lib/{interpreter}/site-packages"
    out = subprocess.run(
        [wrapper, *(tmp_path / word for word in command)],
        env={"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "PYTHONPATH": "/var/runtime"},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=20,
        check=True,
    ).stdout
    assert out == (
        f"{interpreter} {task} {task}:{layer}:/var/runtime 1 -m chalicelib.stream.runtime\n"
    )
