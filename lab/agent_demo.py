"""An agent program is trained on a CPU: a tiny policy is taught to solve a task half of the time, then reinforced by rewards.

Guarantees: the run is the real one: launcher, trainer, gateway, a pool with sandboxes, the unmodified program and the driver.
The exit status is 0 only if every update happened. What was started is stopped, also on Ctrl-C, SIGTERM or a crash.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agentrl.exceptions import AgentError
from agentrl.harness.offer import load_harness
from agentrl.harness.records import EPISODES, lines
from agentrl.pool_process import STOP_S, start_pool
from groundwork.command_line import CommandLine, port_number
from groundwork.exceptions import ConfigError
from groundwork.process import ChildProcess, spawn
from lab.tiny_agents.lessons import PROGRAMS, LessonError, lessons
from lab.tiny_demo.launched import REPOSITORY, LaunchedRun, RunFailed, Settings
from lab.tiny_demo.planned import refuse_bad_plan
from openclaw.ledger.store import Ledger

TASK = "shell/write_word/train/0"
GROUP = 8
SLOTS = 4
RUN_S = {"mini-swe-agent": 60.0, "openclaw": 300.0, "opencode": 300.0, "hermes": 300.0}
"""Seconds that a run may take, by program: OpenClaw needs 16 s of a core to start, Hermes and opencode 5 s."""
POLL_SECONDS = 0.5
STUCK_SECONDS = 600.0
VARIABLES = {
    "BATCH_SIZE": str(GROUP),
    "LEARNING_RATE": "6e-4",
    "CONTEXT_LENGTH": "8192",
    "MAX_TOKENS_PER_GPU": "8192",
    "MAX_RESPONSE_LENGTH": "128",
    "OPENCLAW_TEMPERATURE": "1.0",
    "GATE": "0",
}
"""Defaults of the run: a step has one group, and prompts of programs are long. A taught reply has 51 tokens, so that the fuse on long
replies trips for babble only. Rewards are a verifier's and no opinions, so none is kept out of training as a probe."""


class DemoFailed(RuntimeError):
    """The run did not get to its end; says where to look."""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options; unknown ones go to the launcher."""
    parser = CommandLine(prog="agent_demo.py", description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--harness", choices=[*PROGRAMS], default="mini-swe-agent", help="agent program (%(default)s)")
    add("--updates", type=int, default=16, help="optimizer steps (%(default)s)")
    add("--seed", type=int, default=0, help="of the run (%(default)s)")
    add("--port", type=port_number, default=30000, help="of the gateway (%(default)s)")
    add("--run-dir", type=Path, help="for logs, ledger and checkpoints (default: runs/...)")
    add("--dry-run", action="store_true", help="check the plan, start nothing")
    options, options.launcher_arguments = parser.parse_known_args(argv)
    options.own_flags = parser.known_flags()
    if options.updates < 1:
        parser.error("--updates needs at least 1")
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    options.run_dir = (options.run_dir or REPOSITORY / "runs" / f"{options.harness}-{stamp}").absolute()
    return options


def settings_of(options: argparse.Namespace, model: Path) -> Settings:
    """Return what the launcher is asked for."""
    return Settings(
        method="rl",
        updates=options.updates,
        seed=options.seed,
        port=options.port,
        run_dir=options.run_dir,
        model=model,
        extra=options.launcher_arguments,
        defaults=VARIABLES,
    )


def policy(options: argparse.Namespace, console: Console) -> Path:
    """Return the folder of the taught policy.

    Raises:
        ConfigError: the program is not installed.
        LessonError: also, if the policy did not learn its lessons.
    """
    harness = load_harness(options.harness)
    harness.mounts()
    with console.status(f"recording what {options.harness} asks"):
        recorded = asyncio.run(lessons(harness, [TASK], console.print))
    from lab.tiny_agents.teach import taught  # imports torch

    with console.status("teaching a tiny policy a right and a wrong way") as status:
        return taught(recorded, status.update if console.is_terminal else console.print)


def pool_words(options: argparse.Namespace) -> list[str]:
    """Return the arguments of the pool."""
    words = ["--env", "agentrl.harness.environment.HarnessEnvironment", "--harness", options.harness]
    words += ["--gateway-url", f"http://127.0.0.1:{options.port}", "--slots", str(SLOTS)]
    return [*words, "--ledger", str(options.run_dir / "pool.sqlite")]


def driver_words(options: argparse.Namespace, pool_url: str) -> list[str]:
    """Return the arguments of the driver."""
    words = ["--harness", options.harness, "--task", TASK, "--group-size", str(GROUP), "--parallel", str(SLOTS)]
    words += ["--timeout-s", f"{RUN_S[options.harness]:g}", "--most-ready", str(GROUP)]
    words += ["--records", str(records_of(options))]
    return [*words, "--pool-url", pool_url, "--gateway-url", f"http://127.0.0.1:{options.port}"]


def start_driver(options: argparse.Namespace, pool_url: str, stack: ExitStack) -> ChildProcess:
    """Start the driver; it goes on until it is stopped."""
    command = [sys.executable, "-m", "agentrl.harness", *driver_words(options, pool_url)]
    driver = spawn(command, env=dict(os.environ), log_path=options.run_dir / "agents.log", name="agents")
    stack.callback(driver.stop, STOP_S)
    return driver


def records_of(options: argparse.Namespace) -> Path:
    """Return the folder of the driver's records."""
    return options.run_dir / "agents"


def train(options: argparse.Namespace, run: LaunchedRun, driver: ChildProcess, console: Console) -> None:
    """Wait until every update is live.

    Raises:
        RunFailed: the run ended, or a fuse paused its training.
        DemoFailed: the driver ended, or no update came for long.
    """
    columns = (TextColumn("updates"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[told]}"))
    records = records_of(options) / EPISODES
    with (
        closing(Ledger(run.settings.ledger)) as ledger,
        Progress(*columns, TimeElapsedColumn(), console=console) as progress,
    ):
        bar = progress.add_task("updates", total=options.updates, told="")
        steps, since = 0, time.monotonic()
        while steps < options.updates:
            time.sleep(POLL_SECONDS)
            run.check_trains()
            if not driver.alive():
                raise DemoFailed(f"the driver ended; the end of {driver.log_path}:\n{driver.log_tail()}")
            now = int(ledger.views.counts()["steps"])
            scores = scores_of(records)
            told = f"{len(scores)} runs, {share(scores[-2 * GROUP :])} of the last {2 * GROUP} solved"
            progress.update(bar, completed=now, told=told)
            if now > steps:
                steps, since = now, time.monotonic()
                if not console.is_terminal:
                    console.print(f"update {now}/{options.updates}: {told}", soft_wrap=True)
            if time.monotonic() - since > STUCK_SECONDS:
                raise DemoFailed(f"no update for {STUCK_SECONDS:.0f} s; see {run.log_path} and {driver.log_path}")


def scores_of(records: Path) -> list[float]:
    """Return the scores of the rewarded runs, oldest first."""
    return [line["score"] for line in lines(records) if line["reward"] is not None]


def share(scores: Sequence[float]) -> str:
    """Return the share of solved runs."""
    return f"{sum(score >= 1 for score in scores) / len(scores):.2f}" if scores else "-"


def carry_out(options: argparse.Namespace, console: Console) -> None:
    """Teach, start, train and report; stop what was started."""
    began = time.monotonic()
    model = policy(options, console)
    run = LaunchedRun(settings_of(options, model))
    run.check_port()
    with ExitStack() as stack:
        stack.callback(run.stop)
        run.start()
        with console.status(f"starting Ray, SGLang, trainer and gateway (log: {run.log_path})"):
            asyncio.run(run.wait_ready())
        console.print(f"serves   {run.settings.base_url}, after {time.monotonic() - began:.0f} s", soft_wrap=True)
        pool_url = start_pool(pool_words(options), options.run_dir / "pool.log", stack)
        driver = start_driver(options, pool_url, stack)
        train(options, run, driver, console)
        console.print("stopping")
    scores = scores_of(records_of(options) / EPISODES)
    quarter = max(len(scores) // 4, 1)
    first, last = scores[:quarter], scores[-quarter:]
    console.print(f"solved   {share(first)} of the first {quarter} runs, {share(last)} of the last {quarter}")
    console.print(f"runs     {len(scores)} in {time.monotonic() - began:.0f} s; {options.run_dir}", soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    options, console = parse(argv), Console()
    refuse_bad_plan(settings_of(options, REPOSITORY / "model"), options.own_flags)
    if options.dry_run:
        print(f"agent    {options.harness} on {TASK}, {options.updates} updates of {GROUP} runs; run {options.run_dir}")
        print("dry run: the plan is valid, nothing was started")
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        carry_out(options, console)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except (AgentError, ConfigError, LessonError, RunFailed, DemoFailed) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
