"""A tiny agent learns to use tools on a CPU: warm start from traces, then GRPO with episodes on a real engine.

Guarantees: the exit status is 0 only if every update happened. Figures come from the records of episodes. What was started is
stopped, also on Ctrl-C, SIGTERM or a crash.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rich.console import Console
from tiny_demo.report import save
from tiny_learning.clicks import GUI
from tiny_learning.outcomes import Outcomes, share
from tiny_learning.pictures.tasks import GUI_PICTURES
from tiny_learning.sets import TASK_SETS, UPDATES, judges, warm_start_of
from tiny_learning.training import HELDOUT_TASKS, REPOSITORY, Plan, Sizes, start_training

from agentrl.exceptions import InfraError
from slime.utils.command_line import CommandLine, new_output_file

POLL_S = 1.0
PROG = "run_tiny_cpu.sh"


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
    add("--dry-run", action="store_true", help="print the plan, start nothing")
    options = parser.parse_args(argv)
    if options.samples < 2:
        parser.error("--samples 1: a group needs at least 2 episodes to compare")
    if options.heldout > HELDOUT_TASKS:
        parser.error(f"--heldout {options.heldout}: a family has {HELDOUT_TASKS} held-out tasks")
    if options.pictures:
        if options.task not in (GUI.name, GUI_PICTURES.name):
            parser.error(f"--pictures: the task {options.task} has none; use it with {GUI.name}")
        options.task = GUI_PICTURES.name
    if options.process_reward and not judges(TASK_SETS[options.task]):
        parser.error("--process-reward: the warm start that sees pictures has not learned to judge steps")
    options.updates = options.updates or UPDATES[options.task]
    stamp = f"{datetime.now():%Y%m%d-%H%M%S}"
    options.run_dir = (options.run_dir or REPOSITORY / "runs" / f"{options.task}-{stamp}").absolute()
    if options.run_dir.exists() and any(options.run_dir.iterdir()):
        parser.error(f"--run-dir {options.run_dir} is not empty; choose a new folder")
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


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 up")
    return int(text)


def carry_out(options: argparse.Namespace, console: Console) -> None:
    """Make the warm start, train, report; stop what was started.

    Raises:
        LearningFailed, InfraError, WarmStartError: see there.
    """
    began = time.monotonic()
    from tiny_learning import report

    tasks = TASK_SETS[options.task]
    model = warm_start_of(tasks, lambda text: console.print(text, soft_wrap=True))
    plan = Plan(tasks, model, options.run_dir, options.updates, options.seed, options.process_reward, options.sizes)
    outcomes = Outcomes(plan.folder)
    with ExitStack() as stack:
        trainer = start_training(plan, stack)
        console.print(f"starting Ray, SGLang and the trainer (log: {plan.log})", soft_wrap=True)
        watch = Watch(plan, outcomes, console)
        while trainer.alive():
            time.sleep(POLL_S)
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
    """Prints a line for each evaluation and each update."""

    def __init__(self, plan: Plan, outcomes: Outcomes, console: Console) -> None:
        self._plan, self._outcomes, self._console = plan, outcomes, console
        self._told: set[str] = set()
        self._began = time.monotonic()

    def look(self) -> None:
        """Read the new records, and tell what is complete."""
        plan, outcomes = self._plan, self._outcomes
        outcomes.look()
        batch, played = plan.sizes.prompts * plan.sizes.samples, outcomes.trained
        if played:
            self._tell("before", f"held-out tasks before training: {share(outcomes.evaluated(last=False))} solved")
        for update in range(1, len(played) // batch + 1):
            told = f"{share(played[(update - 1) * batch : update * batch]):.2f} of its {batch} episodes solved"
            self._tell(str(update), f"update {update}/{plan.updates}: {told}")

    def _tell(self, what: str, text: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self._console.print(f"{time.monotonic() - self._began:5.0f} s  {text}", soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line."""
    options, console = parse(argv), Console()
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
        signal.signal(number, signal.default_int_handler)
    from tiny_learning.warm_start import WarmStartError

    try:
        carry_out(options, console)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return 130
    except (LearningFailed, InfraError, WarmStartError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
