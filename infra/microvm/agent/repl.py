"""The interpreter of a session: runs what it is sent, one after another, in one namespace.

A program of its own, that `kernel` starts. Whatever runs here can break it; `kernel` sees that and
starts another.
"""

from __future__ import annotations

import ast
import importlib
import json
import linecache
import os
import sys
import traceback
import types
from typing import Any


def _serve(channel: int) -> None:
    """Answer each line `{"id", "code"}` of the channel with a line `{"id", "exitCode", …}`."""
    home = os.getpid()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [""]
    sys.path.insert(0, os.getcwd())
    count = 0
    pending = b""
    while True:
        line, found, rest = pending.partition(b"\n")
        if not found:
            more = os.read(channel, 65536)
            if not more:
                return
            pending += more
            continue
        pending = rest
        asked = json.loads(line)
        count += 1
        answer = _run(asked["code"], f"<run {count}>", module.__dict__)
        if os.getpid() != home:
            os._exit(0)  # the code has forked, and this is the child
        told = json.dumps({"id": asked["id"], **answer}).encode() + b"\n"
        while told:
            told = told[os.write(channel, told) :]


def _run(code: str, name: str, namespace: dict[str, Any]) -> dict[str, Any]:
    linecache.cache[name] = (len(code), None, code.splitlines(keepends=True), name)
    importlib.invalidate_caches()  # a module may just have been written
    answer: dict[str, Any] = {"exitCode": 0, "memory": False}
    try:
        _execute(code, name, namespace)
    except SystemExit as exc:
        answer["exitCode"] = _status(exc.code)
    except BaseException as exc:
        answer["exitCode"] = 1
        answer["memory"] = isinstance(exc, MemoryError)
        _show(exc)
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BaseException:  # noqa: S112  it may be anything that the code has put there
            continue
    return answer


def _execute(code: str, name: str, namespace: dict[str, Any]) -> None:
    """Run all of it, and show the value of an expression that stands last."""
    tree = ast.parse(code, name)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), namespace)  # noqa: S102
    if last is not None:
        shown = ast.Interactive([last])
        exec(compile(shown, name, "single"), namespace)  # noqa: S102


def _status(code: Any) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)  # noqa: T201
    return 1


def _show(exc: BaseException) -> None:
    """The traceback, from the code's own frames on."""
    trace = exc.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    try:
        traceback.print_exception(type(exc), exc, trace)
    except BaseException:  # the exception's own text may fail, and memory may be out
        try:
            os.write(2, f"{type(exc).__name__}\n".encode())
        except BaseException:
            return


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
