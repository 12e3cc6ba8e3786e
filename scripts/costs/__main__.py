"""scripts/estimate-costs: the bill of a month; with --measure, what a turn takes."""

import argparse

from costs.estimate import table


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(
        prog="scripts/estimate-costs",
        description="Estimate a month's bill from scripts/costs/prices.toml and usage.toml.",
    )
    parser.add_argument(
        "--measure",
        type=int,
        metavar="TURNS",
        help="run so many turns on a server of its own and print usage.toml's measured lines",
    )
    args = parser.parse_args()
    if args.measure:
        import uvloop

        from costs.measure import measure

        print(uvloop.run(measure(args.measure)))
    else:
        print(table())


if __name__ == "__main__":
    main()
