"""The bill of a month, line by line: what is paid for being there, and what turns add."""

import json
import math
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]

TURNS_A_DAY: Final = (1, 1_000, 1_000_000)
_HOURS: Final = 730.0
_MINUTES: Final = 43_800.0
_GB: Final = 1e9
_SECONDS_A_DAY: Final = 86_400.0
# what the stack has of them, whatever the traffic; an alarm is paid for each metric it looks at
_NATS, _METRICS, ALARMED, _KEYS, _SECRETS = 1, 12, 33, 3, 2
_SCHEDULED: Final = {"sweep": 0.15, "memory_tick": 0.06, "memory_index": 0.06}  # seconds a run
_LEAST_ACUS: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class Line:
    """One line of the bill, in dollars a month."""

    name: str
    why: str
    dollars: float


def read(name: str) -> dict[str, Any]:
    """One of this folder's TOML files."""
    return tomllib.loads((HERE / name).read_text(encoding="utf-8"))


def estimate(turns_a_day: int) -> list[Line]:
    """The bill at that many turns a day."""
    prices, usage = read("prices.toml"), read("usage.toml")
    turn, month = usage["turn"], usage["month"]
    memory = _memory_gb()
    turns = turns_a_day * month["days"]
    seconds = turn["model_seconds"] + turn["upkeep_seconds"] + turn["own_seconds"]
    streamed = turns * seconds * memory["stream"]
    others = turns * turn["other_requests"] * turn["other_seconds"] * memory["api_handler"]
    scheduled = _MINUTES * sum(memory[name] * each for name, each in _SCHEDULED.items())
    requests = turns * (1 + turn["other_requests"])
    acus = _acus(turns_a_day, turn, month)
    stored = turns * month["months_kept"] * turn["stored_kb"] * 1e3 / _GB
    out = turns * turn["traffic_out_kb"] * 1e3 / _GB
    through_nat = turns * turn["traffic_nat_kb"] * 1e3 / _GB
    lambda_, aurora, watch = prices["lambda"], prices["aurora"], prices["cloudwatch"]
    return [
        Line(
            name="Lambda, turns",
            why="the stream function waits for the model and is paid for it",
            dollars=(streamed + others) * lambda_["gb_second"] + requests * lambda_["request"],
        ),
        Line(
            name="Lambda, schedules",
            why="three functions a minute",
            dollars=scheduled * lambda_["gb_second"]
            + _MINUTES * len(_SCHEDULED) * lambda_["request"],
        ),
        Line(
            name="API Gateway",
            why="none of it for what goes to the function URL",
            dollars=requests * prices["api_gateway"]["request"],
        ),
        Line(
            name="Aurora, capacity",
            why=f"{acus:g} ACUs on average, {_LEAST_ACUS} at least",
            dollars=acus * _HOURS * aurora["acu_hour"],
        ),
        Line(
            name="Aurora, storage and I/O",
            why=f"{month['months_kept']} months of turns kept, without retention",
            dollars=stored * aurora["gb_month"] + turns * turn["database_ios"] * aurora["io"],
        ),
        Line(
            name="RDS Proxy",
            why="eight ACUs at least are paid for",
            dollars=max(acus, prices["rds_proxy"]["least_acus"])
            * _HOURS
            * prices["rds_proxy"]["acu_hour"],
        ),
        Line(
            name="NAT gateway",
            why="one, for both zones",
            dollars=_NATS * _HOURS * prices["nat"]["hour"] + through_nat * prices["nat"]["gb"],
        ),
        Line(
            name="Logs, metrics, alarms",
            why="30 days of logs",
            dollars=turns * turn["log_kb"] * 1e3 / _GB * watch["log_gb"]
            + _METRICS * watch["metric_month"]
            + ALARMED * watch["alarm_month"]
            + watch["dashboard_month"],
        ),
        Line(
            name="Keys, secrets, queue, traffic",
            why="to the internet as list price",
            dollars=_KEYS * prices["kms"]["key_month"]
            + _SECRETS * prices["secrets"]["secret_month"]
            + turns * turn["sqs_requests"] * prices["sqs"]["request"]
            + out * prices["transfer"]["out_gb"],
        ),
    ]


def _memory_gb() -> dict[str, float]:
    config = json.loads((ROOT / ".chalice/config.json").read_text(encoding="utf-8"))
    return {
        name: one["lambda_memory_size"] / 1024 for name, one in config["lambda_functions"].items()
    }


def _acus(turns_a_day: int, turn: dict[str, Any], month: dict[str, Any]) -> float:
    """What the database has on average: sized for the peak hour, in halves, followed down to it."""
    cpu = turns_a_day / _SECONDS_A_DAY * turn["database_cpu_seconds"]
    return max(_LEAST_ACUS, math.ceil(2 * cpu / (month["acu_cpu"] * month["acu_load"])) / 2)


def table() -> str:
    """The bills side by side, in Markdown."""
    bills = [estimate(turns) for turns in TURNS_A_DAY]
    rows = [
        f"| {lines[0].name} | {' | '.join(_shown(one.dollars) for one in lines)} "
        f"| {lines[-1].why} |"
        for lines in zip(*bills, strict=True)
    ]
    totals = [sum(one.dollars for one in bill) for bill in bills]
    per_turn = [
        total / (turns * read("usage.toml")["month"]["days"])
        for total, turns in zip(totals, TURNS_A_DAY, strict=True)
    ]
    return "\n".join(
        [
            f"| dollars a month | {' | '.join(f'{turns:,} turns a day' for turns in TURNS_A_DAY)}"
            " | |",
            "| --- | --- | --- | --- | --- |",
            *rows,
            f"| **together** | {' | '.join(f'**{total:,.0f}**' for total in totals)} | |",
            f"| a turn | {' | '.join(f'{one:.5f}' for one in per_turn)} | |",
        ]
    )


def _shown(dollars: float) -> str:
    return f"{dollars:,.2f}" if dollars < 100 else f"{dollars:,.0f}"
