"""``python terminal-rl/data_utils/load_tasks.py --tasks_dir FOLDER``: read every task folder, and say which cannot run and why."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from agentrl.tasks.harbor import TASK_TOML
from agentrl.tasks.terminal.source import TaskSource
from agentrl.tasks.terminal.tbench import TASK_YAML
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError

PROG = "load_tasks.py"


def source_of(folder: Path) -> TaskSource:
    """Return the source of a folder's tasks: of Harbor if it has such ones, else of terminal-bench.

    Raises:
        ConfigError: it has neither.
    """
    kinds: tuple[tuple[Literal["harbor", "tbench"], str], ...] = (("harbor", TASK_TOML), ("tbench", TASK_YAML))
    for kind, marker in kinds:
        if next(folder.rglob(marker), None) is not None:
            prefix = TaskSource.from_env().image_prefix
            return TaskSource(task_type=kind, dataset_dir=str(folder), image_prefix=prefix)
    raise ConfigError(f"{folder} has no task folder; each has a {TASK_TOML} or a {TASK_YAML}")


def sorted_out(source: TaskSource) -> tuple[list[str], dict[str, str]]:
    """Return the ids of the tasks that can run, and why the others cannot, by id."""
    good: list[str] = []
    bad: dict[str, str] = {}
    for item in source.ids():
        try:
            source.load(item)
            good.append(item)
        except ConfigError as error:
            bad[item] = str(error)
    return good, bad


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = CommandLine(prog=PROG, description=(__doc__ or "").partition(": ")[2])
    parser.add_argument("--tasks_dir", type=Path, required=True, metavar="FOLDER", help="folder of task folders")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the status is 1 if a task cannot run."""
    options = build_parser().parse_args(argv)
    try:
        good, bad = sorted_out(source_of(options.tasks_dir))
    except ConfigError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    print(*good, sep="\n")
    for why in bad.values():
        print(f"cannot run: {why}", file=sys.stderr)
    print(f"{len(good)} tasks can run, {len(bad)} cannot", file=sys.stderr)
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
