"""Distributions, and the tables and JSON they are printed as."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Spread:
    """Percentiles of a set of figures, in the unit of the figures; zeros for an empty set."""

    n: int
    p50: float
    p95: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        ordered = sorted(values)

        def at(share: float) -> float:
            return round(ordered[round(share * (len(ordered) - 1))], 3) if ordered else 0.0

        return cls(n=len(ordered), p50=at(0.5), p95=at(0.95), p99=at(0.99), max=at(1.0))


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One row of a table: a value for each column, None where there is none.

    `compare` shows every column but the first with its difference to the first and its ratio.
    """

    name: str
    values: Sequence[float | None]
    digits: int = 2
    compare: bool = True

    def cells(self) -> list[str]:
        base = self.values[0]
        cells = []
        for n, value in enumerate(self.values):
            if value is None:
                cells.append("–")
                continue
            cell = f"{value:,.{self.digits}f}"
            if n and self.compare and base is not None:
                cell += f"  {value - base:+,.{self.digits}f}"
                cell += f"  ×{value / base:,.3g}" if base else ""
            cells.append(cell)
        return cells

    def as_dict(self, columns: Sequence[str]) -> dict[str, Any]:
        """Every column's value, and to the first column its difference and ratio."""
        base, shown = self.values[0], {}
        for n, (column, value) in enumerate(zip(columns, self.values, strict=True)):
            if value is None:
                continue
            entry = {"value": round(value, 4)}
            if n and self.compare and base is not None:
                entry["difference"] = round(value - base, 4)
                if base:
                    entry["ratio"] = round(value / base, 4)
            shown[column] = entry
        return shown


@dataclass(kw_only=True)
class Table:
    """What one scenario found: figures by column, remarks, and what went wrong."""

    scenario: str
    title: str
    columns: Sequence[str]
    figures: list[Figure]
    remarks: list[str]
    failures: list[str]
    parameters: Mapping[str, Any]

    @classmethod
    def of_failure(cls, scenario: str, exc: Exception) -> "Table":
        """What is left to say of a scenario that broke off."""
        return cls(
            scenario=scenario,
            title=f"{scenario} broke off",
            columns=[],
            figures=[],
            remarks=[],
            failures=[f"{type(exc).__name__}: {exc}"],
            parameters={},
        )

    def text(self) -> str:
        rows = [["", *self.columns], *([f.name, *f.cells()] for f in self.figures)]
        widths = [max(len(row[n]) for row in rows) for n in range(len(rows[0]))]
        lines = ["", self.title]
        for row in rows if self.figures else []:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  " + "   ".join(cells).rstrip())
        lines += [f"  {remark}" for remark in self.remarks]
        lines += [f"  FAILED: {failure}" for failure in self.failures]
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        return {
            "scenario": self.scenario,
            "title": self.title,
            "parameters": dict(self.parameters),
            "figures": {f.name: f.as_dict(self.columns) for f in self.figures},
            "remarks": self.remarks,
            "failures": self.failures,
        }


def spread_figures(name: str, spreads: Sequence[Spread | None], digits: int = 2) -> list[Figure]:
    """Three rows, the percentiles of the same thing in each column."""
    return [
        Figure(
            name=f"{name}, {mark}",
            values=[None if s is None else getattr(s, mark) for s in spreads],
            digits=digits,
        )
        for mark in ("p50", "p95", "p99")
    ]


def write_json(path: Path, tables: Sequence[Table], about: Mapping[str, Any]) -> None:
    """All tables and what is known of the run, as one object."""
    document = {**about, "tables": [table.as_dict() for table in tables]}
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
