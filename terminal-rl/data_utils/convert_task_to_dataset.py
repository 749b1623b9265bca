"""``python terminal-rl/data_utils/convert_task_to_dataset.py --tasks_dir FOLDER``: task folders as rows for ``--prompt-data``.

Writes ``train.jsonl``, and ``test.jsonl`` of the tasks that are not for training: those of ``--test_tasks_dir``, or the share that
``--train_split`` leaves. Guarantees: no task is in both. A task that cannot run stops it, unless ``--skip`` is given.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

from load_tasks import sorted_out, source_of

from agentrl.tasks.terminal.prompts import write_rows
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError

PROG = "convert_task_to_dataset.py"


def usable(folder: Path, skip: bool) -> list[str]:
    """Return the ids of a folder's tasks that can run.

    Raises:
        ConfigError: one cannot, and is not to be skipped.
    """
    good, bad = sorted_out(source_of(folder))
    for why in bad.values():
        if not skip:
            raise ConfigError(f"{why} (or leave such tasks out with --skip)")
        print(f"left out: {why}", file=sys.stderr)
    return good


def split(ids: Sequence[str], share: float, seed: int) -> tuple[list[str], list[str]]:
    """Return the ids for training and for testing; the same seed gives the same ones."""
    shuffled = Random(seed).sample(sorted(ids), len(ids))
    count = round(share * len(ids))
    return sorted(shuffled[:count]), sorted(shuffled[count:])


def common(train: Path, test: Path) -> Path:
    """Return the folder that has both folders; a pool has one, and it needs one kind of tasks.

    Raises:
        ConfigError: there is none, or the kinds differ.
    """
    root = Path(os.path.commonpath([train.resolve(), test.resolve()]))
    if root == Path(root.anchor):
        raise ConfigError(f"{train} and {test} have no folder in common; put both below one")
    kinds = [source_of(folder).task_type for folder in (train, test)]
    if kinds[0] != kinds[1]:
        raise ConfigError(
            f"{train} is of {kinds[0]} and {test} of {kinds[1]}; a pool has one kind, so convert each alone"
        )
    return root


def below(root: Path, folder: Path, ids: Sequence[str]) -> list[str]:
    """Return ids of a folder's tasks as ids of a folder above it."""
    return [(folder.resolve().relative_to(root) / item).as_posix() for item in ids]


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(prog=PROG, description="Write task folders as rows for training and testing.")
    add = parser.add_argument
    add("-d", "--tasks_dir", type=Path, required=True, metavar="FOLDER", help="folder of task folders")
    add("--test_tasks_dir", type=Path, metavar="FOLDER", help="folder of the tasks for testing; all others train")
    add("--train_split", type=float, default=0.9, metavar="SHARE", help="share for training without it (%(default)s)")
    add("--output_dir", type=Path, default=Path("data"), metavar="FOLDER", help="where the files go (%(default)s)")
    add("--seed", type=int, default=0, help="of the split (%(default)s)")
    add("--skip", action="store_true", help="leave out tasks that cannot run, and name them")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if not 0 < options.train_split <= 1:
        parser.error(f"--train_split {options.train_split:g} is not above 0 and at most 1")
    try:
        train = usable(options.tasks_dir, options.skip)
        if options.test_tasks_dir is None:
            train, test = split(train, options.train_split, options.seed)
            parts = {"train": (options.tasks_dir, train), "test": (options.tasks_dir, test)}
        else:
            root = common(options.tasks_dir, options.test_tasks_dir)
            train = below(root, options.tasks_dir, train)
            test = below(root, options.test_tasks_dir, usable(options.test_tasks_dir, options.skip))
            if both := sorted(set(train) & set(test)):
                raise ConfigError(f"{', '.join(both[:3])} is in both folders; remove it from one of them")
            parts = {"train": (root, train), "test": (root, test)}
            print(f"play them with DATASET_DIR={root}")
        for name, (folder, ids) in parts.items():
            file = options.output_dir / f"{name}.jsonl"
            print(f"{file}: {write_rows(source_of(folder), ids, file)} tasks")
    except ConfigError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
