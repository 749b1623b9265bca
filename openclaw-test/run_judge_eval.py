"""Measures a judge on labelled next states: `bash openclaw-test/run_judge_eval.sh --judge-base-url URL --judge-model M`.

For each domain and language: accuracy, wrong signs (said +1 for -1 or -1 for +1), abstention (no quorum, or 0 for a case
that has a sign), hints given where there is one and where there is none, agreement of the votes, and seconds per question.

Guarantees: the votes, the quorum and the majority are those of a run (`openclaw.judge`). Nothing is recorded or trained.
A question that the judge refuses is an abstention, counted and said. Exit status 1 if the judge could not be asked, or
refused every question.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from judge_set import DOMAINS, FILE, Case, load
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from groundwork.command_line import CommandLine, output_file, server_url
from groundwork.exceptions import ConfigError
from openclaw.config.runtime import RuntimeConfig
from openclaw.exceptions import EngineRefusedError, JudgeError
from openclaw.judge.client import together
from openclaw.judge.interface import Judge, Question
from openclaw.judge.voting import agreement, has_quorum, majority
from openclaw.judge.wiring import build_judge
from openclaw.ledger.records import JudgeKind
from openclaw.method import JudgePlan

PARALLEL = 4
REPORT_WIDTH = 120


@dataclass(frozen=True)
class Answer:
    """A judge's answers about one case: score and hint (None without a quorum), agreement, seconds, why it refused."""

    case: Case
    score: int | None
    hint: bool | None
    agreement: float
    seconds: float
    refused: str | None = None


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog="run_judge_eval.sh",
        description="Measure a judge on labelled next states. Name one: an endpoint, an engine of your own, or a class. "
        "Without a flag the OPENCLAW_JUDGE_* variables of a run apply; OPENCLAW_JUDGE_API_KEY holds the endpoint's key.",
    )
    add = parser.add_argument
    add("--judge-base-url", type=server_url, metavar="URL", help="OpenAI-compatible endpoint, like https://HOST/v1")
    add("--judge-model", metavar="M", help="model that the endpoint is asked for")
    add("--judge-class", metavar="MODULE.CLASS", help="Python class with score(prompt, response, next_state)")
    add("--judge-url", type=server_url, metavar="URL", help="SGLang engine of your own, like http://127.0.0.1:30001")
    add("--judge-tokenizer", metavar="P", help="folder of the engine's tokenizer")
    add("--votes", type=int, default=3, metavar="N", help="votes per question (default: %(default)s)")
    add("--no-hints", action="store_true", help="ask for scores only")
    add("--prompts", choices=("full", "brief"), help="wording; brief is for tiny judges (default: full)")
    add("--domains", type=lambda text: text.split(","), default=list(DOMAINS), help=f"out of {','.join(DOMAINS)}")
    add("--data", type=Path, default=FILE, metavar="FILE", help="another set in the same format")
    add("--limit", type=int, metavar="N", help="only the first N cases")
    add("--dry-run", action="store_true", help="print what would be asked and ask nothing")
    add("--report", type=output_file, metavar="FILE", help="also write the figures and every answer as JSON")
    return parser


def configuration(given: argparse.Namespace) -> RuntimeConfig:
    """Return the runtime configuration with the command's judge in place of the environment's."""
    named = {
        "OPENCLAW_JUDGE_BASE_URL": given.judge_base_url,
        "OPENCLAW_JUDGE_MODEL": given.judge_model,
        "OPENCLAW_JUDGE_CLASS": given.judge_class,
        "OPENCLAW_JUDGE_URL": given.judge_url,
        "OPENCLAW_JUDGE_TOKENIZER": given.judge_tokenizer,
        "OPENCLAW_JUDGE_PROMPTS": given.prompts,
    }
    config = RuntimeConfig.from_env({**os.environ, **{name: value for name, value in named.items() if value}})
    if not config.judged_elsewhere and not config.judge_url:
        raise ConfigError("no judge is named; add --judge-base-url URL --judge-model M, --judge-class or --judge-url")
    return config


async def measure(judge: Judge, config: RuntimeConfig, cases: Sequence[Case], votes: int, hints: bool) -> list[Answer]:
    """Ask about every case, `PARALLEL` at a time, with a progress bar."""
    slots = asyncio.Semaphore(PARALLEL)
    console = Console(stderr=True)
    with Progress(console=console, disable=not console.is_terminal) as progress:
        bar = progress.add_task("asking the judge", total=len(cases))

        async def ask(case: Case) -> Answer:
            async with slots:
                answer = await _ask(judge, config, case, votes, hints)
            progress.advance(bar)
            return answer

        return await together(*(ask(case) for case in cases))


async def _ask(judge: Judge, config: RuntimeConfig, case: Case, count: int, hints: bool) -> Answer:
    question = Question.about(case.prompt, case.reply, case.next_state)
    started = time.monotonic()
    (prm, refused), (hinted, _) = await together(
        _votes(judge, "prm", question, count), _votes(judge, "hint", question, count if hints else 0)
    )
    values = [vote.value for vote in prm]
    score = majority(values, config.majority_vote_threshold) if prm and has_quorum(prm, config.judge_quorum) else None
    hint = None
    if hinted and has_quorum(hinted, config.judge_quorum):
        hint = any(vote.hint for vote in hinted)
    return Answer(case, score, hint, agreement(values), time.monotonic() - started, refused)


async def _votes(judge: Judge, kind: JudgeKind, question: Question, count: int) -> tuple[list[Any], str | None]:
    """Return the votes; or none, and why the judge refused the question."""
    try:
        return await judge.votes(kind, question, count), None
    except EngineRefusedError as error:
        return [], str(error)


def figures(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the figures of some answers; a share without a case is None."""
    signed = [answer for answer in answers if answer.case.score]
    corrections = [answer for answer in answers if answer.hint is not None]
    return {
        "cases": len(answers),
        "accuracy": _share(answer.score == answer.case.score for answer in answers),
        "wrong_sign": _share((answer.score or 0) * answer.case.score < 0 for answer in signed),
        "abstention": _share(not answer.score for answer in signed),
        "refused": _share(answer.refused is not None for answer in answers),
        "hint_recall": _share(bool(answer.hint) for answer in corrections if answer.case.hint),
        "hint_false": _share(bool(answer.hint) for answer in corrections if not answer.case.hint),
        "agreement": round(statistics.fmean(answer.agreement for answer in answers), 3) if answers else None,
        "seconds_median": round(statistics.median(answer.seconds for answer in answers), 3) if answers else None,
    }


def _share(hits: Iterable[bool]) -> float | None:
    found = list(hits)
    return round(sum(found) / len(found), 3) if found else None


def report(answers: Sequence[Answer]) -> dict[str, Any]:
    """Return the figures of all answers, and by domain and language."""
    groups = {name: [each for each in answers if each.case.domain == name] for name in DOMAINS}
    languages = sorted({each.case.language for each in answers})
    groups |= {name: [each for each in answers if each.case.language == name] for name in languages}
    return {"all": figures(answers), **{name: figures(found) for name, found in groups.items() if found}}


def show(found: dict[str, Any], console: Console) -> None:
    """Print the figures as a table."""
    names = list(found["all"])
    table = Table("", *(name.replace("_", " ") for name in names))
    for group, row in found.items():
        table.add_row(group, *("-" if row[name] is None else str(row[name]) for name in names))
    console.print(table)


def plan_line(config: RuntimeConfig, cases: Sequence[Case], given: argparse.Namespace) -> str:
    """Return what a run would ask, and whom."""
    judge = config.judge_class or config.judge_base_url or config.judge_url
    kinds = 1 if given.no_hints else 2
    return f"dry run: would ask {judge} {len(cases) * given.votes * kinds} times, about {len(cases)} next states"


async def run(given: argparse.Namespace) -> list[Answer]:
    """Build the judge, ask it, and release it."""
    config = configuration(given)
    cases = load(given.data, given.domains)[: given.limit]
    plan = JudgePlan(prm_votes=given.votes, hint_votes=0 if given.no_hints else given.votes)
    judge, _ = build_judge(config, plan, config.judge_seconds, 0)
    try:
        return await measure(judge, config, cases, given.votes, not given.no_hints)
    finally:
        await judge.close()


def main(words: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    parser = build_parser()
    given = parser.parse_args(words)
    unknown = set(given.domains) - set(DOMAINS)
    if unknown or given.votes < 1:
        parser.error(f"--domains are {','.join(DOMAINS)}" if unknown else "--votes must be at least 1")
    try:
        if given.dry_run:
            print(plan_line(configuration(given), load(given.data, given.domains)[: given.limit], given))
            return 0
        answers = asyncio.run(run(given))
    except (ConfigError, JudgeError, ValueError, OSError) as error:
        print(f"run_judge_eval.sh: {error}", file=sys.stderr)
        return 1
    refusals = [each.refused for each in answers if each.refused is not None]
    if refusals:
        print(f"the judge refused {len(refusals)} of {len(answers)} questions, such as: {refusals[0]}", file=sys.stderr)
    if answers and len(refusals) == len(answers):
        return 1
    found = report(answers)
    show(found, Console(width=None if sys.stdout.isatty() else REPORT_WIDTH))
    if given.report:
        rows = [
            {"id": each.case.id, "label": each.case.score, "score": each.score, "hint": each.hint} for each in answers
        ]
        given.report.write_text(json.dumps({"figures": found, "answers": rows}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
