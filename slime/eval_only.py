"""Evaluate a checkpoint with engines and evaluation sets, without a trainer. Print a table and write JSON.

Exit code 0: every answer of every set was scored. 1: something failed. 2: the arguments are wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from groundwork.private_files import OutputError, check_output
from groundwork.process import watch_lifeline
from slime.arguments import parse_args
from slime.arguments.cluster import CLUSTER
from slime.arguments.evaluation import NO_TRAINING, add_report_flag
from slime.arguments.parser import Parser
from slime.arguments.rollout import DATA, ENVIRONMENTS, EVALUATION, ROLLOUT
from slime.arguments.sglang_flags import TITLE as ENGINES_TITLE
from slime.arguments.tracking import TRACKING

if TYPE_CHECKING:
    from slime.ray.run import Run

PAPER_WIDTH = 140
_COLUMNS = (
    ("truncated", "-truncated_ratio", "{:.1%}"),
    ("aborted", "-aborted_ratio", "{:.1%}"),
    ("no answer", "/grader_no_answer", "{:.0f}"),
    ("timeouts", "/grader_timeout", "{:.0f}"),
    ("mean tokens", "/response_len/mean", "{:.0f}"),
    ("answers", "/answers", "{:.0f}"),
)


COMMON = (
    *("--config", "--dry-run", "--hf-checkpoint", "--run-dir", "--json", "--eval-prompt-data", "--eval-config"),
    *("--n-samples-per-eval-prompt", "--eval-max-response-len", "--eval-temperature", "--eval-top-p"),
    *("--apply-chat-template", "--input-key", "--label-key", "--rm-type", "--custom-rm-path", "--rm-url"),
    *("--device", "--num-gpus", "--rollout-num-gpus", "--rollout-num-gpus-per-engine", "--use-wandb"),
)
# Groups whose flags mean something without a trainer.
TOPICS = (CLUSTER.title, ROLLOUT.title, DATA.title, EVALUATION.title, TRACKING.title, ENVIRONMENTS.title, ENGINES_TITLE)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Declare this program's own flags."""
    if isinstance(parser, Parser):
        parser.common, parser.topics = COMMON, TOPICS
    parser.description = (
        "Evaluate --hf-checkpoint on the sets of --eval-config or --eval-prompt-data; "
        "score them with --rm-type or --custom-rm-path."
    )
    add_report_flag(parser)


def table(metrics: dict[str, Any]) -> Table:
    """Return one row per evaluation set: score, pass@k, and how its answers ended."""
    from slime.rollout.metrics import PREFIX, scores

    passes = sorted({name.rpartition("-")[2] for name in metrics if "-pass@" in name}, key=lambda name: int(name[5:]))
    shown = [(name, f"-{name}", "{:.3f}") for name in passes] + list(_COLUMNS)
    shown = [column for column in shown if any(name.endswith(column[1]) for name in metrics)]
    made = Table("set", "score", *(title for title, _, _ in shown))
    for name, score in scores(metrics).items():
        cells = [(metrics.get(f"{PREFIX}{name}{suffix}"), form) for _, suffix, form in shown]
        made.add_row(name, f"{score:.3f}", *("" if value is None else form.format(value) for value, form in cells))
    return made


def main(argv: list[str]) -> int:
    """Evaluate and return the exit code."""
    args = parse_args([*NO_TRAINING, *argv], add_flags)
    target = vars(args).pop("json")
    if not args.eval_datasets and args.eval_function_path == args.rollout_function_path:
        print(
            "eval_only.py: nothing to evaluate on; add --eval-prompt-data NAME PATH or --eval-config FILE",
            file=sys.stderr,
        )
        return 2
    if target:
        try:
            check_output(target)
        except OutputError as error:
            print(f"eval_only.py: --json {error}", file=sys.stderr)
            return 2
    # These import Ray, for which a mistyped flag need not wait.
    from slime.ray.run import execute
    from slime.rollout.metrics import scores

    console = Console(stderr=True)
    results: dict[str, Any] = {}

    def evaluate(run: Run) -> None:
        start = time.monotonic()
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TimeRemainingColumn(), console=console) as bars:
            bar = bars.add_task("answers", total=None)
            metrics = run.evaluate(0, lambda done, total: bars.update(bar, completed=done, total=total or None))
            answers = sum(value for name, value in metrics.items() if name.endswith("/answers"))
            bars.update(bar, completed=answers, total=answers)
        results.update(metrics, **{"perf/evaluation_time": time.monotonic() - start})

    code = execute(args, evaluate, collects=False)
    if not results:
        return code or 1
    Console(width=None if sys.stdout.isatty() else PAPER_WIDTH).print(table(results))
    if target:
        report = {"checkpoint": args.hf_checkpoint, "metrics": results, "scores": scores(results)}
        target.write_text(json.dumps(report, indent=2) + "\n")
    return code


if __name__ == "__main__":
    watch_lifeline()
    sys.exit(main(sys.argv[1:]))
