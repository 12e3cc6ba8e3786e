"""scripts/scan: cfn-lint and checkov over a packaged template; both without the network."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from ..packagelib import PackagingError, make
from .exceptions import Finding, complaints, exceptions_of
from .expansion import expand

_OFFLINE = ["--framework", "cloudformation", "--skip-download"]
_QUIETLY = ["--quiet", "--compact", "--output", "json"]


def lint(template: Path, *ignored: str) -> list[str]:
    """What cfn-lint says of a template, but for these checks."""
    command = [Path(sys.executable).with_name("cfn-lint"), "--format", "parseable"]
    ignore = ["--ignore-checks", *ignored, "--"] if ignored else []
    done = subprocess.run([*command, *ignore, template], capture_output=True, text=True)
    return [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]


def scan(checkov: Path, expanded: dict[str, Any]) -> list[Finding]:
    """What checkov finds in an expanded template, conditional resources included."""
    resources = {
        name: {key: value for key, value in one.items() if key != "Condition"}
        for name, one in expanded["Resources"].items()
    }
    with tempfile.TemporaryDirectory() as home:
        path = Path(home) / "template.json"
        path.write_text(json.dumps(expanded | {"Resources": resources}))
        done = subprocess.run(
            [checkov, "--file", path, *_OFFLINE, *_QUIETLY],
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": home, "CKV_SKIP_PACKAGE_UPDATE_CHECK": "1"},
        )
    try:
        told = json.loads(done.stdout)
        assert told["summary"]["parsing_errors"] == 0
    except (ValueError, KeyError, AssertionError):
        raise SystemExit(
            f"checkov did not scan the template:\n{done.stdout}{done.stderr}"
        ) from None
    print(f"{told['summary']['passed']} checks passed", file=sys.stderr)
    return [
        Finding(
            resource=one["resource"].partition(".")[2],
            check=one["check_id"],
            about=one["check_name"],
        )
        for one in told["results"]["failed_checks"]
    ]


def examine(path: Path, checkov: Path) -> list[str]:
    """All that is wrong with a packaged template, one line each."""
    template = json.loads(path.read_text())
    expanded = expand(template)
    with tempfile.TemporaryDirectory() as folder:
        plain = Path(folder) / "expanded.json"
        plain.write_text(json.dumps(expanded, indent=1))
        # SAM writes the stage into some names, and leaves a Fn::Sub of nothing
        linted = [*lint(path), *lint(plain, "W1020")]
    findings = scan(checkov, expanded)
    return [*linted, *complaints(findings, exceptions_of(template), template["Resources"])]


def main() -> int:
    """0 nothing found, 1 something."""
    parser = argparse.ArgumentParser(prog="scripts/scan", description=__doc__)
    parser.add_argument("template", nargs="?", type=Path, help="a sam.json of scripts/package")
    parser.add_argument("--checkov", type=Path, required=True, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        try:
            path = options.template or make("dev", Path(folder)).template
        except PackagingError as exc:
            raise SystemExit(str(exc)) from exc
        wrong = examine(path, options.checkov)
    print("\n".join(wrong) or "nothing found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
