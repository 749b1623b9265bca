"""What the command lines in ``slime/tools`` share: their flags, and errors of one line.

Guarantee: reads the command line and the existence of the input folders without importing torch.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from groundwork.checkpoint_names import named_checkpoint
from groundwork.command_line import CommandLine, existing_folder
from groundwork.exceptions import ConfigError
from slime.exceptions import SlimeError

DTYPES = ("bfloat16", "float16", "float32")
"""The types that the commands write."""


def command_line(prog: str, description: str | None) -> CommandLine:
    """Return the parser of a command, described by the first line of its docstring."""
    return CommandLine(prog=prog, description=(description or "").split("\n")[0])


def add_input(parser: argparse.ArgumentParser, flag: str, text: str) -> None:
    """Declare an input folder."""
    parser.add_argument(flag, required=True, type=_folder, metavar="FOLDER", help=text)


def _folder(text: str) -> Path:
    """Parse an existing folder; ``ROOT/checkpoint-500`` stands for a checkpoint in it."""
    return existing_folder(named_checkpoint(text))


def add_output(parser: argparse.ArgumentParser, flag: str) -> None:
    """Declare the output folder, ``--force`` and ``--dtype``."""
    parser.add_argument(flag, required=True, type=Path, dest="output", metavar="FOLDER", help="folder to write")
    parser.add_argument("-f", "--force", action="store_true", help="replace an existing output folder")
    parser.add_argument("--dtype", choices=DTYPES, help="type of the written weights (default: as in config.json)")


def read_conversion(prog: str, description: str | None, argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of a conversion of a run's checkpoint to a Hugging Face folder."""
    parser = command_line(prog, description)
    add_input(parser, "--input-dir", "a run's checkpoints folder, or one checkpoint in it")
    add_input(parser, "--origin-hf-dir", "Hugging Face checkpoint that the run started from")
    add_output(parser, "--output-dir")
    return parser.parse_args(argv)


def run(prog: str, work: Callable[[], str]) -> int:
    """Do ``work`` and print its result; an error becomes one line and exit status 2."""
    try:
        print(work())
    except (SlimeError, ConfigError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    return 0
