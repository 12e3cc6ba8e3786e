"""The code of the microVMs' image: the Dockerfile and the agent, zipped and uploaded for a stage.

    scripts/deploy dev --param "$(infra/microvm/build dev)"

The stack has Lambda build the image from it. The zip is the same for the same files, and its name
is its content's hash: unless something has changed, nothing is uploaded and no version is built.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from scripts.deploying.account import on_aws
from scripts.deploying.artifacts import Bucket
from scripts.deploying.errors import explain
from scripts.packagelib.archives import write_zip

HERE = Path(__file__).parent
_OUT = HERE.parents[1] / ".cache" / "microvm.zip"


def pack(target: Path) -> Path:
    """Write the zip that Lambda builds an image from: a Dockerfile and what it copies."""
    target.parent.mkdir(parents=True, exist_ok=True)
    write_zip(target, _files())
    return target


def _files() -> Iterator[tuple[str, bytes, bool]]:
    yield "Dockerfile", (HERE / "Dockerfile").read_bytes(), False
    for path in sorted((HERE / "agent").rglob("*.py")):
        yield path.relative_to(HERE).as_posix(), path.read_bytes(), False


def upload(code: Path, bucket: Bucket) -> str:
    """Put it where a stage's other code is; the stack's parameter that says so."""
    bucket.ensure()
    return f"MicrovmArtifact=s3://{bucket.name}/{bucket.put(code)}"


def main(argv: list[str] | None = None) -> int:
    """Print the stack's parameter, or the file's name where there is no stage."""
    parser = argparse.ArgumentParser(
        prog="infra/microvm/build",
        description="Makes the code of the microVMs' image. With a stage it is uploaded into the "
        "account's artifact bucket, and the parameter for scripts/deploy is printed.",
    )
    parser.add_argument("stage", nargs="?", choices=["dev", "prod"], help="none: only the file")
    parser.add_argument("--region", help="AWS region; else the one the environment names")
    parser.add_argument("--out", type=Path, default=_OUT, help=f"the file ({_OUT.name} in .cache)")
    args = parser.parse_args(argv)
    code = pack(args.out)
    if args.stage is None:
        print(code)  # noqa: T201
        return 0
    try:
        print(upload(code, Bucket(on_aws(args.region), args.stage)))  # noqa: T201
    except Exception as exc:
        if (sentence := explain(exc)) is None:
            raise
        print(sentence, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
