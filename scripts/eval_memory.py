"""The quality set of `tests/distillation` through a real model. See `scripts/eval-memory`.

Each transcript is distilled in a tenant of its own, on an embedded Postgres in a temporary folder,
by the passes that production has, and the facts that are active then are judged by the patterns
that the transcript expects. Exit status: 0 if it ran, whatever the figures; 1 if no transcript
could be distilled; 2 if it was not started.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop

from chalicelib.auth import SCOPES, Principal, create_tenant
from chalicelib.config import Settings, SettingsError, load_settings
from chalicelib.db import Database
from chalicelib.errors import PalError
from chalicelib.gateway.postgres import Logins, NotReady, embedded, prepare
from chalicelib.memory.directory import People
from chalicelib.memory.distill.passes import Distiller
from chalicelib.memory.distillates import Distillates
from chalicelib.memory.timeline import Timeline
from chalicelib.providers import Finished, ModelEvent, ModelRequest, Models, Provider
from tests.distillation.corpus import Transcript, load_corpus
from tests.distillation.judge import Tally, Verdict, judge
from tests.distillation.reading import Parts, know_people, known_facts, read_conversation

OFFLINE = "the offline stand-in is no model; give --model or set PAL_PROVIDERS."


@dataclass
class Usage:
    """What the model was asked for, and what that cost as far as providers tell."""

    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: float = 0.0

    def add(self, end: Finished) -> None:
        """Count one answer."""
        self.calls += 1
        self.tokens_in += end.tokens_in or 0
        self.tokens_out += end.tokens_out or 0
        self.cost_usd += end.cost_usd or 0.0


class Metered:
    """A provider whose answers are counted."""

    def __init__(self, provider: Provider, usage: Usage) -> None:
        self.name, self.model = provider.name, provider.model
        self._provider, self._usage = provider, usage

    async def stream(self, request: ModelRequest) -> AsyncGenerator[ModelEvent, None]:
        """See `Provider.stream`."""
        async for event in self._provider.stream(request):
            if isinstance(event, Finished):
                self._usage.add(event)
            yield event

    async def close(self) -> None:
        """Nothing of its own to close."""


class MeteredModels(Models):
    """The models of the settings, their answers counted."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self.usage = Usage()

    async def chain(self, **asked: Any) -> Provider:
        """See `Models.chain`."""
        return Metered(await super().chain(**asked), self.usage)


@dataclass(kw_only=True)
class Outcome:
    """The verdicts, and by id the codes of what could not be distilled."""

    verdicts: list[Verdict] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


async def evaluate(
    models: MeteredModels, logins: Logins, corpus: Sequence[Transcript], *, parallel: int
) -> Outcome:
    """Distil and judge all of these, so many at a time."""
    owner, db = Database(str(logins.owner), size=2), Database(logins.app, size=2 * parallel + 2)
    await owner.open()
    await db.open()
    parts = Parts(
        people=People(db),
        timeline=Timeline(db),
        distillates=Distillates(db),
        passes=Distiller(db, models),
    )
    outcome, gate = Outcome(), asyncio.Semaphore(parallel)

    async def one(transcript: Transcript) -> None:
        async with gate:
            tenant_id = await create_tenant(owner, name=transcript.id)
            caller = Principal(tenant_id=tenant_id, key_id="", scopes=frozenset(SCOPES))
            try:
                verdict = await distil(parts, caller, transcript)
            except PalError as exc:
                outcome.failed[transcript.id] = exc.code
            except TimeoutError:
                outcome.failed[transcript.id] = "not_read"
            else:
                outcome.verdicts.append(verdict)
            show_progress(len(outcome.verdicts) + len(outcome.failed), len(corpus))

    try:
        async with asyncio.TaskGroup() as group:
            for transcript in corpus:
                group.create_task(one(transcript))
    finally:
        await models.close()
        await db.close()
        await owner.close()
    outcome.verdicts.sort(key=lambda each: each.transcript.id)
    return outcome


async def distil(parts: Parts, caller: Principal, transcript: Transcript) -> Verdict:
    """Read a transcript's conversations one after another, and judge what is known then."""
    ids = await know_people(parts, caller, transcript)
    for number in range(len(transcript.conversations)):
        await read_conversation(parts, caller, transcript, number)
    return judge(transcript, await known_facts(parts, caller, ids))


# ── what is printed ─────────────────────────────────────────────────────────────────────────────

HEAD = ("", "transcripts", "fine", "precision", "recall", "supersession", "forbidden")


def table(verdicts: Sequence[Verdict]) -> str:
    """The figures of all, by theme and by language."""
    rows = [HEAD, _row("all", verdicts)]
    for title, key in (("theme", _theme), ("language", _language)):
        rows.append((title, *[""] * (len(HEAD) - 1)))
        for name in sorted({key(one) for one in verdicts}):
            rows.append(_row(f"  {name}", [one for one in verdicts if key(one) == name]))
    widths = [max(len(row[n]) for row in rows) for n in range(len(HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if not n else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def _theme(verdict: Verdict) -> str:
    return verdict.transcript.theme


def _language(verdict: Verdict) -> str:
    return verdict.transcript.language


def _row(name: str, verdicts: Iterable[Verdict]) -> tuple[str, ...]:
    tally = Tally.of(verdicts)
    shares = [tally.precision, tally.recall, tally.supersession]
    shown = ["–" if one is None else f"{one:.3f}" for one in shares]
    return name, f"{tally.transcripts}", f"{tally.fine}", *shown, f"{tally.forbidden}"


def misses(outcome: Outcome, *, show: bool) -> list[str]:
    """A line for all that is not as it should be; facts themselves only where `show` says so.

    Of a transcript that holds secrets no fact is ever shown.
    """
    lines = [f"{name}: not distilled, {code}" for name, code in sorted(outcome.failed.items())]
    for verdict in outcome.verdicts:
        one, shown = verdict.transcript, show and not verdict.transcript.secret

        def fact(told: Any, shown: bool = shown) -> str:
            return f" ({told.of}) {told.text}" if shown else ""

        for n in verdict.missing:
            lines.append(f"{one.id}: missing {one.must[n].of}: {' + '.join(one.must[n].says)}")
        for n in verdict.stale:
            lines.append(f"{one.id}: not superseded by {' + '.join(one.must[n].says)}")
        for n, told in verdict.forbidden:
            lines.append(f"{one.id}: forbidden by must_not {n + 1}{fact(told)}")
        if verdict.extra and not shown:
            lines.append(f"{one.id}: extra {len(verdict.extra)}")
        lines += [f"{one.id}: extra{fact(told)}" for told in verdict.extra if shown]
    return lines


def as_json(outcome: Outcome, usage: Usage, chain: str) -> dict[str, Any]:
    """The figures and misses for a program; no facts."""
    tally = Tally.of(outcome.verdicts)
    return {
        "model": chain,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "transcripts": tally.transcripts,
        "fine": tally.fine,
        "precision": tally.precision,
        "recall": tally.recall,
        "supersession": tally.supersession,
        "forbidden": tally.forbidden,
        "misses": misses(outcome, show=False),
        "calls": usage.calls,
        "tokensIn": usage.tokens_in,
        "tokensOut": usage.tokens_out,
        "costUsd": round(usage.cost_usd, 6),
    }


def show_progress(done: int, of: int) -> None:
    """On a terminal, how far it is."""
    if sys.stderr.isatty():
        print(f"\r{done}/{of}", end="" if done < of else "\n", file=sys.stderr, flush=True)


# ── how it is called ────────────────────────────────────────────────────────────────────────────


def parse_arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(
        prog="scripts/eval-memory",
        description="Distil the quality set with a model; print precision, recall, supersession.",
        epilog="Providers are set as for the server: OPENAI_API_KEY and the like. "
        "Precision: of the facts that are active in the end, those that are expected or allowed. "
        "Recall: of the facts that must come, those that came. Supersession: of the changes, those "
        "after which only the newest is active. Forbidden: facts that must not be there.",
    )
    parser.add_argument(
        "--model", help="a chain as in PAL_PROVIDERS, such as openai:gpt-5-mini; unset, that"
    )
    parser.add_argument(
        "--only", action="append", default=[], metavar="WORD", help="a theme, a language or an id"
    )
    parser.add_argument("--parallel", type=int, default=4, help="transcripts at a time (4)")
    parser.add_argument("--show", action="store_true", help="tell the facts of the misses too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    args = parser.parse_args()
    if args.parallel < 1:
        parser.error("--parallel takes a number from 1 on")
    return args


def chosen(only: Sequence[str]) -> list[Transcript]:
    """The transcripts of these words; all of them without any."""
    corpus = load_corpus()
    if not only:
        return list(corpus)
    return [one for one in corpus if {one.id, one.theme, one.language} & set(only)]


def main() -> int:
    """Start a Postgres, distil, print."""
    args = parse_arguments()
    try:
        environ = dict(os.environ)
        if args.model:
            environ |= {"PAL_PROVIDERS": args.model, "PAL_PROVIDERS_FAST": ""}
        settings = replace(load_settings(environ), memory_distill=True)
        models = MeteredModels(settings)
        corpus = chosen(args.only)
        if not corpus:
            print("not started: there is no such theme, language or id", file=sys.stderr)
            return 2
        places = settings.providers_fast or settings.providers
        chain = ",".join(f"{name}:{model}" for name, model in places) or "offline:offline"
        if all(one.startswith("offline:") for one in chain.split(",")):
            print(f"not started: {OFFLINE}", file=sys.stderr)
            return 2
        began = time.monotonic()
        with (
            tempfile.TemporaryDirectory(prefix="pal-eval-", ignore_cleanup_errors=True) as folder,
            embedded(Path(folder)) as master,
        ):
            logins = asyncio.run(prepare(master))
            outcome = uvloop.run(evaluate(models, logins, corpus, parallel=args.parallel))
    except (SettingsError, NotReady) as exc:
        print(f"not started: {exc}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    usage = models.usage
    print(f"{chain}, {len(corpus)} transcripts in {time.monotonic() - began:.1f} s\n")
    print(table(outcome.verdicts))
    print("\n" + "\n".join(misses(outcome, show=args.show) or ["no misses"]))
    cost = f", ${usage.cost_usd:.4f}" if usage.cost_usd else ""
    tokens = f"{usage.tokens_in:,} tokens in, {usage.tokens_out:,} out"
    print(f"\n{usage.calls} calls, {tokens}{cost}")
    if args.json:
        args.json.write_text(json.dumps(as_json(outcome, usage, chain), indent=2) + "\n")
    return 0 if outcome.verdicts else 1


if __name__ == "__main__":
    sys.exit(main())
