"""What functions import at their start: on Lambda, what every call needs, or all of it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from app import BLUEPRINTS, app
from chalicelib.api.document import build_document

ON_LAMBDA = {"AWS_LAMBDA_RUNTIME_API": "127.0.0.1:1", "PATH": "/usr/bin"}
WAITING = {"aiohttp", "aws_lambda_powertools", "chalicelib.sessions.engine", "pydantic"}
PROGRAM = """if True:
    import json, sys
    from app import app
    before = sorted(app.routes)
    loaded = [name for name in ("pydantic", "chalicelib.jobs") if name in sys.modules]
    told = {"httpMethod": "GET", "headers": {}, "body": None, "isBase64Encoded": False}
    nowhere = {"requestContext": {"resourcePath": "/v1/nowhere", "httpMethod": "GET"}, **told}
    status = app(nowhere, None)["statusCode"]
    app._register_for("/v1/people/{person_id}")
    from chalicelib.api.document import build_document
    people = sorted(app.routes)
    print(json.dumps([before, loaded, status, people, build_document()]))
"""


def start(root: Path, **env: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=root,
        env={**ON_LAMBDA, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    told: list[Any] = json.loads(done.stdout)
    return told


def test_every_path_is_found_by_its_head() -> None:
    """Lost if red: a route that is there everywhere but on Lambda."""
    missing = [
        path
        for path, methods in app.routes.items()
        for entry in methods.values()
        if path.removeprefix("/v1/").strip("/").partition("/")[0]
        not in BLUEPRINTS[entry.view_function.__module__]
    ]
    assert missing == []


def test_lambda_registers_what_is_asked_for(root: Path) -> None:
    """Lost if red: half a second of every cold start, or the description of all routes."""
    before, loaded, status, people, document = start(root)
    assert (before, loaded, status) == ([], [], 404)
    assert people
    assert {path.split("/")[2] for path in people} == {"people"}
    assert document == json.loads(json.dumps(build_document()))


def test_provisioned_function_registers_all(root: Path) -> None:
    """Lost if red: a first call that waits for imports, where readiness is paid for."""
    before, *_ = start(root, AWS_LAMBDA_INITIALIZATION_TYPE="provisioned-concurrency")
    assert before == sorted(app.routes)


@pytest.mark.parametrize(
    "module", ["chalicelib.stream.lambda_entry", "chalicelib.api.endpoint", "chalicelib.jobs"]
)
def test_what_few_calls_need_waits_for_them(root: Path, module: str) -> None:
    """Lost if red: a cold start that is twice as long, because of one import in a module's head."""
    assert loaded(root, module) == []


def test_provisioned_stream_function_has_all_of_a_turn(root: Path) -> None:
    """Lost if red: a first turn that waits for imports, where readiness is paid for."""
    ready = {"AWS_LAMBDA_INITIALIZATION_TYPE": "provisioned-concurrency"}
    assert loaded(root, "chalicelib.stream.lambda_entry", **ready) == sorted(WAITING)


def loaded(root: Path, module: str, **env: str) -> list[str]:
    program = f"import sys, {module}; print(*sorted({WAITING} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=root,
        env={**ON_LAMBDA, **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.split()
