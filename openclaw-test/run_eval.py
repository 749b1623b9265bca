"""Evaluates a model on suites of generated problems: `bash openclaw-test/run_eval.sh --model-path P --eval-tasks conversation`.

Guarantees: stops what it started; a learning server trains nothing on it. Exit status 0 if all suites ran, 1 if one could not
or the server was lost, 2 for a wrong command line, 130 after Ctrl-C. What is done stays in ``--output-dir``, and the same command
goes on from there.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from asking import server_client
from evaluation.case import EvalError, Suite
from evaluation.options import PROG, RUN_EVAL, Program, Target, read_options, settings_of, targets
from evaluation.records import Results, prepare
from evaluation.report import REPORT_MD, Evaluated, Report, save
from evaluation.run import Meter, Plan, evaluate, too_long
from evaluation.served import export, served
from evaluation.suites import build_suites
from evaluation.talk import Policy
from rich.console import Console

from groundwork.exceptions import ConfigError
from openclaw.server.__main__ import main as server_command

RETRIES = 4
"""Of a request, after a lost connection, 429 or 5xx."""
STOPPED = 130


async def model_name(client: Any, target: Target) -> str:
    """Return the model to ask for, once the server has answered.

    Raises:
        EvalError: it does not answer, refuses the key, or has several models.
    """
    from openai import APIConnectionError, APIStatusError

    try:
        names = [item.id async for item in client.models.list()]
    except APIConnectionError as error:
        raise EvalError(
            f"no server answers at {client.base_url}; start one, or write --model-path P to serve a checkpoint"
        ) from error
    except APIStatusError as error:
        if error.status_code in (401, 403):
            raise EvalError(
                f"{client.base_url} refuses the key; set SGLANG_API_KEY, or name a variable with --key-variable"
            ) from error
        if target.model:
            return target.model
        raise EvalError(f"{client.base_url} lists no models ({error.status_code}); name one with --model") from error
    if target.model and target.model not in names:
        listed = ", ".join(names[:8]) or "none"
        print(f"{PROG}: {client.base_url} does not list the model {target.model}; it lists {listed}", file=sys.stderr)
    if not target.model and len(names) != 1:
        raise EvalError(f"{client.base_url} has {len(names)} models ({', '.join(names[:8])}); name one with --model")
    return target.model or names[0]


async def ask_all(
    options: argparse.Namespace, extra: Sequence[str], models: Sequence[Target], suites: Sequence[Suite], report: Report
) -> None:
    """Evaluate the models one after the other; the report has what is there at any moment.

    Raises:
        EvalError: a server does not start, or is lost.
    """
    plan = Plan(options.seeds, options.num_problems, options.samples, options.parallel)
    meter = Meter(Console(stderr=True))
    for target, model in zip(models, report.models, strict=True):
        results = Results(options.output_dir / target.file)
        model.results = results.records
        try:
            if any(plan.left(suite, results) for suite in suites):
                async with AsyncExitStack() as stack:
                    policy = await _policy(options, extra, target, stack)
                    model.not_run = await evaluate(policy, suites, plan, results, meter)
            model.not_run = {**model.not_run, **too_long(results)}
        finally:
            results.close()


async def _policy(options: argparse.Namespace, extra: Sequence[str], target: Target, stack: AsyncExitStack) -> Policy:
    """Return the model of a target, once it answers; its server and client end with ``stack``."""
    url = await _url(target, extra, options.output_dir, stack)
    key = os.environ[target.key_variable] if target.key_variable else None
    client = await stack.enter_async_context(server_client(url, options.timeout, key))
    name = await model_name(client, target)
    return Policy(client.with_options(max_retries=RETRIES), name, options.max_tokens, options.temperature)


async def _url(target: Target, extra: Sequence[str], folder: Path, stack: AsyncExitStack) -> str:
    """Return the URL of a target, whose server ends with ``stack``."""
    if target.url:
        return target.url
    path = target.path
    if target.run:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix=".weights-", dir=folder)))
        path = str(scratch / "checkpoint")
        await asyncio.to_thread(export, *target.run, Path(path))
    assert path is not None
    print(f"{PROG}: starting a server for {target.name}", file=sys.stderr)
    return await stack.enter_async_context(served(path, extra, folder / f"{Path(target.file).stem}.server.log"))


def finish(report: Report, folder: Path) -> None:
    """Write the report, and say where it is."""
    pictures: list[str] = []
    if importlib.util.find_spec("matplotlib") is None:
        print(f"{PROG}: no pictures, because matplotlib is missing; pip install matplotlib", file=sys.stderr)
    else:
        from evaluation.plots import save_plots

        pictures = save_plots(report, folder)
    save(report, folder, pictures)
    print_scores(report)
    print(f"report   {folder / REPORT_MD}")


def print_scores(report: Report) -> None:
    """Print one line per suite."""
    from evaluation.figures import comparisons, grouped, suite_figures

    for model in report.models:
        print(f"model    {model.name}")
        for name, records in grouped(model.records, "suite").items():
            row = suite_figures(records)
            print(
                f"{name:14} {row['score']:.3f}  [{row['low']:.3f}, {row['high']:.3f}]  {row['passed']} of {row['tries']}"
            )
        for name, why in model.not_run.items():
            print(f"{PROG}: {name} did not run: {why}", file=sys.stderr)
    if report.other:
        for name, row in comparisons(report.this.records, report.other.records).items():
            print(f"{name:14} {row['difference']:+.3f}  [{row['low']:+.3f}, {row['high']:+.3f}]  this minus the other")


def show_plan(options: argparse.Namespace, extra: Sequence[str], models: Sequence[Target]) -> int:
    """Print what a run would do; return the exit status."""
    seeds = f"seed {options.seeds[0]}" if len(options.seeds) == 1 else f"{len(options.seeds)} seeds"
    print(f"tasks    {', '.join(options.eval_tasks)}, {options.num_problems} problems each, {seeds}")
    print(f"output   {options.output_dir}")
    for target in models:
        if target.url:
            print(f"server   {target.url}")
        elif target.run:
            print(f"run      {target.run[0]}")
        elif status := server_command(["--model-path", str(target.path), "--dry-run", *extra], PROG):
            return status
    print("dry run: the plan is valid, nothing was started")
    return 0


def main(argv: Sequence[str] | None = None, program: Program = RUN_EVAL) -> int:
    """Run the command line of a script."""
    words = list(sys.argv[1:] if argv is None else argv)
    options, extra = read_options(words, program)
    if options.output_dir is None:
        options.output_dir = Path("runs") / time.strftime("eval-%Y%m%d-%H%M%S")
        words += ["--output-dir", str(options.output_dir)]
    try:
        models, suites = targets(options), build_suites(options.eval_tasks, options.gsm8k)
        if options.dry_run:
            return show_plan(options, extra, models)
        settings = settings_of(options, models)
        prepare(options.output_dir, settings)
        evaluated = [Evaluated(model.name) for model in models]
        report = Report(settings, evaluated[0], evaluated[1] if evaluated[1:] else None)
    except (EvalError, ConfigError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    status = 0
    try:
        asyncio.run(ask_all(options, extra, models, suites, report))
    except KeyboardInterrupt:
        report.complete, status = False, STOPPED
        print(f"{PROG}: stopped; to go on: bash openclaw-test/run_eval.sh {shlex.join(words)}", file=sys.stderr)
    except (EvalError, ConfigError) as error:
        report.complete, status = False, 1
        print(f"{PROG}: {error}", file=sys.stderr)
        print(f"{PROG}: to go on: bash openclaw-test/run_eval.sh {shlex.join(words)}", file=sys.stderr)
    finish(report, options.output_dir)
    return status or int(any(item.not_run for item in evaluated))


if __name__ == "__main__":
    sys.exit(main())
