"""The bill that the documents tell is the one that the estimate makes."""

from pathlib import Path

from scripts.costs.estimate import TURNS_A_DAY, estimate, table


def test_document_tells_the_estimate(root: Path) -> None:
    """Someone would decide by figures of another version."""
    text = (root / "docs/deploy.md").read_text(encoding="utf-8")
    told = text.partition("<!-- costs -->")[2].partition("<!-- /costs -->")[0]
    assert told.strip() == table()


def test_turns_are_paid_by_the_turn() -> None:
    """A busy month would come as a surprise: a part of the bill would not grow with it."""
    bills = [{one.name: one.dollars for one in estimate(turns)} for turns in TURNS_A_DAY]
    few, many = bills[1], bills[2]
    assert many["Lambda, turns"] / few["Lambda, turns"] == many["API Gateway"] / few["API Gateway"]
    assert round(many["API Gateway"] / few["API Gateway"]) == 1000
    assert all(many[name] >= few[name] >= bills[0][name] for name in few)
