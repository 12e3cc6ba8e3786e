"""scripts/check-policies: each function may do what the suite saw it do, and no more.

scripts/test has its runs keep every call of AWS in a folder (tests/support/calls.py) and ends with
this. Exit status: 0 if the roles fit or the suite has not run whole, 1 if they do not.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path

from packagelib import make

from .compare import differences, read_calls
from .stack import Stack


def main() -> int:
    """Parse and compare."""
    parser = argparse.ArgumentParser(
        prog="scripts/check-policies",
        description="Compare what the suite asked of AWS with what each function's role allows.",
    )
    parser.add_argument("folder", type=Path, help="where the whole suite's calls were kept")
    parser.add_argument("--stage", default="dev", help="whose roles (dev)")
    args = parser.parse_args()
    calls = read_calls(args.folder)
    if not calls:
        print("policies not checked: no call of AWS was kept, so the suite has not run")
        return 0
    with tempfile.TemporaryDirectory(prefix="check-policies-") as out:
        packaged = make(args.stage, Path(out) / "package")
        stack = Stack(json.loads(packaged.template.read_text()), args.stage)
    found = differences(calls, stack)
    for one in found:
        print(one)
    print(f"policies: {len(calls)} calls, {len(stack.functions)} functions, {len(found)} wrong")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
