"""The command lines that convert data sets; an agent folder has them under the names of older guides.

Guarantees: a file that exists is not written over. A row that cannot be used ends the command, or is counted with ``--skip-bad``.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from agentrl.tasks.toolcall.datasets import conversation_row, question_row, read_table
from agentrl.tasks.toolcall.draft import GraderName
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError

PROGRESS = 10_000
Row = Callable[[Mapping[str, Any], str], dict[str, Any]]


def questions(argv: Sequence[str] | None = None) -> int:
    """Convert questions with labels for reinforcement learning; return the exit status."""
    parser = _parser(
        "rl_data_preprocess.py", "Convert questions and answers, such as DAPO-Math-17k and AIME, for a run."
    )
    graders = get_args(GraderName)
    parser.add_argument("--grader", choices=graders, default="math", help="how answers are compared (%(default)s)")
    options = parser.parse_args(argv)
    return _converted(parser.prog, options, functools.partial(question_row, grader=options.grader))


def conversations(argv: Sequence[str] | None = None) -> int:
    """Convert conversations for supervised fine-tuning; return the exit status."""
    parser = _parser("sft_data_processing.py", "Convert conversations, such as ReTool-SFT, for supervised fine-tuning.")
    options = parser.parse_args(argv)
    return _converted(parser.prog, options, conversation_row)


def _parser(name: str, description: str) -> CommandLine:
    parser = CommandLine(prog=name, description=description)
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="JSON lines or Parquet to read")
    parser.add_argument(
        "--output", type=Path, required=True, metavar="FILE", help="JSON lines to write; must not exist"
    )
    parser.add_argument("--skip-bad", action="store_true", help="leave out rows that cannot be used, and count them")
    return parser


def _converted(prog: str, options: Any, convert: Row) -> int:
    try:
        written, skipped = _convert(options.input, options.output, convert, skip=options.skip_bad)
    except ConfigError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    print(f"{options.output}: {written} rows{f', {skipped} left out' if skipped else ''}")
    return 0


def _convert(source: Path, target: Path, convert: Row, *, skip: bool) -> tuple[int, int]:
    """Write the converted rows; return how many, and how many were left out."""
    if target.exists():
        raise ConfigError(f"{target} exists; remove it, or name another file")
    rows: list[str] = []
    skipped = 0
    for number, row in read_table(source):
        try:
            rows.append(json.dumps(convert(row, f"{source}: row {number}"), ensure_ascii=False) + "\n")
        except ConfigError:
            if not skip:
                raise
            skipped += 1
        if (number + 1) % PROGRESS == 0:
            print(f"{number + 1} rows read", file=sys.stderr)
    if not rows:
        raise ConfigError(f"{source} has no row that can be used; name another file")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("x", encoding="utf-8") as file:
            file.writelines(rows)
    except OSError as error:
        raise ConfigError(f"{target} cannot be written: {error.strerror}") from error
    return len(rows), skipped
