"""Named queries: each is used, each name that is used exists, and the loader tells them apart."""

import ast
from pathlib import Path

import pytest

from chalicelib.db import load_queries

CODE = Path(__file__).parents[2] / "chalicelib"


def loads(tree: ast.Module) -> list[str]:
    """The files that a module loads its queries from."""
    return [
        str(node.args[1].value) if len(node.args) > 1 else "queries.sql"  # type: ignore[attr-defined]
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "load_queries"
    ]


def names_used(tree: ast.Module) -> set[str]:
    """The names a module asks for: `_QUERIES["name"]`, or through a function of its own."""
    used: set[str] = set()
    passing: dict[str, int] = {}
    for function in ast.walk(tree):
        if not isinstance(function, ast.AsyncFunctionDef | ast.FunctionDef):
            continue
        arguments = [one.arg for one in function.args.args]
        for node in ast.walk(function):
            if isinstance(node, ast.Subscript) and ast.unparse(node.value) == "_QUERIES":
                if isinstance(node.slice, ast.Constant):
                    used.add(str(node.slice.value))
                else:
                    passing[function.name] = arguments.index(ast.unparse(node.slice))
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (called := ast.unparse(node.func)) in passing:
            name = node.args[passing[called]]
            assert isinstance(name, ast.Constant), ast.unparse(node)
            used.add(str(name.value))
    return used


def stores() -> list[tuple[Path, str]]:
    found = []
    for path in sorted(CODE.rglob("*.py")):
        found += [(path, file) for file in loads(ast.parse(path.read_text()))]
    return found


@pytest.mark.parametrize(
    ("path", "file"),
    [pytest.param(path, file, id=f"{path.parent.name}-{file}") for path, file in stores()],
)
def test_every_query_is_used_and_every_used_one_exists(path: Path, file: str) -> None:
    """Lost if red: a request that no test makes, at the first caller who does."""
    assert set(load_queries(str(path), file)) == names_used(ast.parse(path.read_text()))


def test_every_sql_file_has_its_store() -> None:
    """Lost if red: queries that nobody reads, or that a test of this file would not see."""
    files = {path for path in CODE.rglob("*.sql") if "db" not in path.parts}
    assert {path.with_name(file) for path, file in stores()} == files
    assert len(files) >= 3


def test_comments_do_not_travel_with_the_query(tmp_path: Path) -> None:
    """Lost if red: statements that are too long for RDS Proxy to share their connection."""
    (tmp_path / "queries.sql").write_text(
        "-- of the file\n-- one --\n-- why it is so\nDELETE FROM a\n  -- and no other\n"
        "  WHERE b = '--'\n\n-- two --\nSELECT 2\n"
    )
    assert load_queries(str(tmp_path / "store.py")) == {
        "one": "DELETE FROM a\nWHERE b = '--'",
        "two": "SELECT 2",
    }


def test_comment_at_the_end_of_a_line_ends_with_it(tmp_path: Path) -> None:
    """Lost if red: a WHERE, and with it every row that it was to spare."""
    (tmp_path / "queries.sql").write_text("-- one --\nDELETE FROM a -- of them\nWHERE b = 1\n")
    text = load_queries(str(tmp_path / "store.py"))["one"]
    assert text.splitlines()[-1] == "WHERE b = 1"


def test_name_that_stands_twice_is_refused(tmp_path: Path) -> None:
    """Lost if red: a query that silently became another."""
    (tmp_path / "queries.sql").write_text("-- one --\nSELECT 1\n-- one --\nSELECT 2\n")
    with pytest.raises(ValueError, match="twice"):
        load_queries(str(tmp_path / "store.py"))
