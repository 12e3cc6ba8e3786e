"""scripts/package: a stage's template, code and layers, for CloudFormation or for Terraform."""

import argparse
import sys
from pathlib import Path

from . import PackagingError, make, make_terraform, rds_authorities


def main() -> int:
    """0 made, 1 not, with the reason."""
    parser = argparse.ArgumentParser(prog="scripts/package", description=__doc__)
    parser.add_argument("stage", help="a stage of .chalice/config.json")
    parser.add_argument("out", type=Path, help="folder that is written to")
    parser.add_argument(
        "--architecture",
        choices=("x86_64", "arm64"),
        help="Lambda's processor, where not .chalice/config.json's",
    )
    parser.add_argument("--terraform", action="store_true", help="make a Terraform module")
    parser.add_argument(
        "--region",
        help="where it will run: what RDS's certificates there are signed by is added to the "
        "code, which bootstrap and migrate need; fetched from AWS, or of the file $PAL_RDS_CA",
    )
    options = parser.parse_args()
    if options.region is None:
        print("without --region, bootstrap and migrate will trust no database", file=sys.stderr)
    package = make_terraform if options.terraform else make
    try:
        made = package(
            options.stage,
            options.out,
            architecture=options.architecture,
            rds_ca=None if options.region is None else rds_authorities(options.region),
        )
    except PackagingError as exc:
        print(exc, file=sys.stderr)
        return 1
    print(made.template)
    return 0


if __name__ == "__main__":
    sys.exit(main())
