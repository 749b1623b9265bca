"""A tiny agent learns to use tools on a CPU: warm start from traces, then GRPO with episodes on a real engine.

Guarantees: the exit status is 0 only if every update happened. Figures come from the records of episodes. What was started is
stopped, also on Ctrl-C, SIGTERM or a crash, and ``--resume`` continues after the last update.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from agentrl.exceptions import InfraError
from groundwork.command_line import CommandLine, new_output_file
from lab.tiny_demo.report import save
from lab.tiny_demo.resume import continue_command, has_checkpoint, newest_stopped
from lab.tiny_learning.calls import TOOLCALL
from lab.tiny_learning.clicks import GUI
from lab.tiny_learning.outcomes import Outcome, Outcomes, percent, share
from lab.tiny_learning.pictures.tasks import GUI_PICTURES
from lab.tiny_learning.sets import TASK_SETS, UPDATES, judges, warm_start_of
from lab.tiny_learning.training import HELDOUT_TASKS, REPOSITORY, Plan, Sizes, start_training
from openclaw.judge.prompts import MOST_MEMBERS
from openclaw.launch.guides import FLAG_TEXTS, OF_ENVIRONMENTS
from openclaw.launch.variables import LaunchVariables

POLL_SECONDS = 1.0
PROG = "run_tiny_cpu.sh"
RUNS = REPOSITORY / "runs"
STATE = "learning.json"
OPTIONS = (
    *("task", "updates", "seed", "pictures", "process_reward", "group_judge"),
    *("heldout", "prompts", "samples", "slots", "learning_rate"),
)
"""What a continued run takes over from its first part, unless the command line says otherwise."""


class LearningFailed(RuntimeError):
    """The run did not get to its end; says where to look."""


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    sizes = Sizes()
    parser = CommandLine(prog=PROG, description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    named = "--task" in (sys.argv if argv is None else argv)  # by the script, whose user need not know
    add("--task", choices=[*TASK_SETS], required=True, help=argparse.SUPPRESS if named else "what the agent learns")
    own = ", ".join(f"{name} {updates}" for name, updates in UPDATES.items())
    add("--updates", type=_count, metavar="N", help=f"optimizer steps (default: {own})")
    add("--seed", type=int, default=0, help="of the run (%(default)s)")
    add("--pictures", action="store_true", help="of a screen: the agent sees screenshots instead of text (task gui)")
    add("--process-reward", action="store_true", help="a judge's votes on each step count beside the outcome")
    add(
        "--group-judge",
        action="store_true",
        help="instead of the outcome, a judge that compares the episodes of a task gives their rewards (task toolcall)",
    )
    add(
        "--heldout",
        type=_count,
        default=sizes.heldout,
        metavar="N",
        help=f"held-out tasks of a family, at most {HELDOUT_TASKS} (%(default)s)",
    )
    add("--prompts", type=_count, default=sizes.prompts, metavar="N", help="tasks of an update (%(default)s)")
    add("--samples", type=_count, default=sizes.samples, metavar="N", help="episodes of a task (%(default)s)")
    add("--slots", type=_count, default=sizes.slots, metavar="N", help="environments at a time (%(default)s)")
    add("--learning-rate", type=float, default=sizes.rate, metavar="R", help="of GRPO (%(default)s)")
    add("--report", type=new_output_file, metavar="FILE", help="file for the report (default: in the run's folder)")
    add("--run-dir", type=Path, help="for logs, records and checkpoints (default: runs/...)")
    add(
        "--resume",
        action="store_true",
        help="continue the run in --run-dir, by default the newest one that was stopped",
    )
    add("--dry-run", action="store_true", help="print the plan, start nothing")
    options = parser.parse_args(argv)
    if options.resume:
        parser.set_defaults(**_of_first_part(parser, options))
        options = parser.parse_args(argv)
    if options.samples < 2:
        parser.error("--samples 1: a group needs at least 2 episodes to compare")
    if options.heldout > HELDOUT_TASKS:
        parser.error(f"--heldout {options.heldout}: a family has {HELDOUT_TASKS} held-out tasks")
    if options.pictures:
        if options.task not in (GUI.name, GUI_PICTURES.name):
            parser.error(f"--pictures: the task {options.task} has none; use it with {GUI.name}")
        options.task = GUI_PICTURES.name
    if options.group_judge and (
        options.task != TOOLCALL.name or options.process_reward or options.samples > MOST_MEMBERS
    ):
        parser.error(f"--group-judge is for toolcall with at most {MOST_MEMBERS} samples, without --process-reward")
    if options.process_reward and not judges(TASK_SETS[options.task]):
        parser.error("--process-reward: the warm start that sees pictures has not learned to judge steps")
    options.updates = options.updates or UPDATES[options.task]
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    options.run_dir = (options.run_dir or RUNS / f"{options.task}-{stamp}").absolute()
    if not options.resume and options.run_dir.exists() and any(options.run_dir.iterdir()):
        parser.error(f"--run-dir {options.run_dir} is not empty; choose a new folder, or continue with --resume")
    options.report = options.report or options.run_dir / "report.json"
    options.sizes = replace(
        sizes,
        heldout=options.heldout,
        prompts=options.prompts,
        samples=options.samples,
        slots=options.slots,
        rate=options.learning_rate,
    )
    return options


def _of_first_part(parser: argparse.ArgumentParser, options: argparse.Namespace) -> dict[str, Any]:
    """Return the options of the run that is continued, for what the command line does not say."""
    named = GUI_PICTURES.name if options.pictures else options.task
    folder = options.run_dir or newest_stopped(RUNS, f"{named}-")
    if folder is None:
        parser.error(f"--resume: no stopped run of {named} with a checkpoint in {RUNS}; name its folder with --run-dir")
    if not has_checkpoint(folder) or not (folder / STATE).is_file():
        parser.error(f"--resume: {folder} has no checkpoint of such a run; leave --resume out to start a new run")
    saved = json.loads((folder / STATE).read_text())
    if saved["task"] not in (named, GUI_PICTURES.name if named == GUI.name else named):
        parser.error(
            f"--resume: {folder} is a run of {saved['task']}, not of {named}; name another folder with --run-dir"
        )
    return {**saved, "run_dir": folder}


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def ignored() -> list[str]:
    """Return the set variables that launch scripts read, and that would change the agent's tasks or do nothing here."""
    names = [name for variable in LaunchVariables.variables() for name in variable.names]
    return [name for name in (*OF_ENVIRONMENTS, *FLAG_TEXTS, *names) if os.environ.get(name)]


def carry_out(options: argparse.Namespace, console: Console) -> None:
    """Make the warm start, train, report; stop what was started.

    Raises:
        LearningFailed, InfraError, WarmStartError: see there.
    """
    began = time.monotonic()
    from lab.tiny_learning import report

    tasks = TASK_SETS[options.task]
    model = warm_start_of(tasks, lambda text: console.print(text, soft_wrap=True))
    plan = Plan(
        *(tasks, model, options.run_dir, options.updates, options.seed, options.process_reward, options.sizes),
        resumed=options.resume,
        group_judge=options.group_judge,
    )
    plan.folder.mkdir(parents=True, exist_ok=True)
    (plan.folder / STATE).write_text(json.dumps({name: getattr(options, name) for name in OPTIONS}) + "\n")
    outcomes = Outcomes(plan.folder)
    with ExitStack() as stack:
        trainer = start_training(plan, stack)
        console.print(f"starting Ray, SGLang and the trainer, about a minute (log: {plan.log})", soft_wrap=True)
        with Watch(plan, outcomes, console) as watch:
            while trainer.alive():
                time.sleep(POLL_SECONDS)
                watch.look()
            watch.look()
        if trainer.returncode != 0:
            raise LearningFailed(
                f"the trainer ended with {trainer.returncode}; the end of {plan.log}:\n{trainer.log_tail()}"
            )
    wanted = plan.updates * plan.sizes.prompts * plan.sizes.samples
    if len(outcomes.trained) < wanted or not outcomes.evaluated(last=True):
        raise LearningFailed(f"{len(outcomes.trained)} of {wanted} episodes were trained; see {plan.log}")
    made = report.make(plan, outcomes, time.monotonic() - began)
    save(made, options.report)
    report.save_plot(made, options.report.with_suffix(".png"))
    report.show(made, console)
    console.print(f"report   {options.report}", soft_wrap=True)


class Watch:
    """Shows how far the run is: a bar in a terminal, and a line for each evaluation and each update; a context manager."""

    def __init__(self, plan: Plan, outcomes: Outcomes, console: Console) -> None:
        self._plan, self._outcomes, self._console = plan, outcomes, console
        self._told: set[str] = set()
        self._began = time.monotonic()
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("episodes"),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._task = self._bar.add_task("starting", total=plan.evaluated)

    def __enter__(self) -> Watch:
        self._bar.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()

    def look(self) -> None:
        """Read the new records, and tell what is complete."""
        plan, outcomes = self._plan, self._outcomes
        outcomes.look()
        played, first = outcomes.trained, outcomes.evaluated(last=False)
        if first or played:
            self._tell("measuring", f"plays {plan.evaluated} held-out episodes with the untrained agent")
        if len(first) >= plan.evaluated:
            self._tell("before", f"before training {percent(share(first))} of the held-out episodes are solved")
        done = len(played) // plan.batch
        for update in range(1, done + 1):
            batch = played[(update - 1) * plan.batch : update * plan.batch]
            told = f"update {update}/{plan.updates}: {percent(share(batch))} of its {plan.batch} episodes solved"
            alike = len({each.solved for each in batch}) == 1 and not plan.process_reward
            self._tell(str(update), told + ("; all alike, so there is nothing to learn from them" if alike else ""))
        last = outcomes.evaluated(last=True)
        if done >= plan.updates:
            self._tell("after", f"plays {plan.evaluated} held-out episodes with the trained agent")
        self._show(played, first, last, done)

    def _show(self, played: Sequence[Outcome], first: Sequence[Outcome], last: Sequence[Outcome], done: int) -> None:
        plan = self._plan
        if done >= plan.updates:
            what, completed, total = "held-out tasks, after", len(last), plan.evaluated
        elif played or len(first) >= plan.evaluated:
            what, completed, total = f"update {done + 1}/{plan.updates}", len(played) - done * plan.batch, plan.batch
        else:
            what, completed, total = "held-out tasks, before" if first else "starting", len(first), plan.evaluated
        self._bar.update(self._task, description=what, completed=completed, total=total)

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._console.print(f"{time.monotonic() - self._began:5.0f} s  {text}", soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    options, console = parse(argv), Console()
    if names := ignored():
        what = f"{', '.join(names)} {'is' if len(names) == 1 else 'are'} ignored"
        print(f"warning: {what}: the tiny agent has its own model, tasks and sizes ({PROG} --help)", file=sys.stderr)
    for name in names:
        del os.environ[name]
    if options.dry_run:
        kind = "outcome and process reward" if options.process_reward else "outcome reward"
        sizes: Sizes = options.sizes
        print(
            f"plan     {options.task}: {options.updates} updates of {sizes.prompts} x {sizes.samples} episodes, {kind}"
        )
        print(f"run      {options.run_dir}")
        print("dry run: the plan is valid, nothing was started")
        return 0
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    from lab.tiny_learning.warm_start import WarmStartError

    try:
        carry_out(options, console)
    except KeyboardInterrupt:
        print(f"stopped{_how_to_continue(options)}", file=sys.stderr)
        return 130
    except (LearningFailed, InfraError, WarmStartError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


def _interrupt(number: int, frame: object) -> NoReturn:
    """Say at once that the run stops; a second signal changes nothing."""
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_IGN)
    print("\nstopping: trainer, engine and pool end, which takes some seconds", file=sys.stderr, flush=True)
    raise KeyboardInterrupt


def _how_to_continue(options: argparse.Namespace) -> str:
    """Return what to type to go on, if the run has a checkpoint."""
    if not has_checkpoint(options.run_dir):
        return " before the first update; start again"
    return f"; continue with: {continue_command(options, sys.argv)}"


if __name__ == "__main__":
    sys.exit(main())
