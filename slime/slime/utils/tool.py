"""What the commands in ``slime/tools`` share: checks before any work, one-line errors, a progress bar.

Guarantee: a command that refuses has written nothing. An output folder appears whole or not at all.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from rich.console import Console
from rich.progress import track

from slime.exceptions import SlimeError
from slime.utils.hf_checkpoint import DTYPES, saved_dtype

Item = TypeVar("Item")


class ToolError(SlimeError):
    """A command cannot do its work."""


def add_output(parser: argparse.ArgumentParser, flag: str) -> None:
    """Declare the output folder, ``--force`` and ``--dtype``."""
    parser.add_argument(flag, required=True, type=Path, dest="output", metavar="FOLDER", help="folder to write")
    parser.add_argument("-f", "--force", action="store_true", help="replace an existing output folder")
    parser.add_argument(
        "--dtype", choices=sorted(DTYPES), help="type of the written weights (default: as in config.json)"
    )


def check_output(output: Path, inputs: Sequence[Path], *, force: bool) -> None:
    """Refuse an output folder that exists, or that contains or lies in an input.

    Raises:
        ToolError: the folder is refused; the message says what to type instead.
    """
    place = output.resolve()
    for folder in map(Path.resolve, inputs):
        if place == folder or place in folder.parents or folder in place.parents:
            raise ToolError(f"{output} contains or lies in {folder}, which is an input; name another folder")
    if output.exists() and not output.is_dir():
        raise ToolError(f"{output} is a file; name a folder")
    if output.exists() and not force:
        raise ToolError(f"{output} already exists; add --force to replace it, or name another folder")


def check_policy(folder: Path, meta: dict[str, Any]) -> None:
    """Refuse a critic's checkpoint ``folder``, which has no LM head; ``meta`` is its metadata.

    Raises:
        ToolError: the folder is refused; the message says what to type instead.
    """
    if meta.get("role") == "critic":
        raise ToolError(f"{folder} is a critic's checkpoint, not a language model; name a checkpoint of the policy")


def output_dtype(name: str | None, source: Path) -> torch.dtype:
    """Return the requested dtype, or that of the checkpoint ``source``."""
    return DTYPES[name] if name else saved_dtype(source)


def progress(items: Iterable[Item], total: int, title: str) -> Iterator[Item]:
    """Yield ``items`` and show a bar on standard error."""
    return iter(track(items, description=title, total=total, console=Console(stderr=True)))


class CheckpointConversion(Protocol):
    """Convert a run's checkpoint to a Hugging Face folder and return a line that describes it."""

    def __call__(self, source: Path, origin: Path, output: Path, *, dtype: str | None, force: bool) -> str: ...


def run_checkpoint_conversion(
    prog: str, description: str | None, convert: CheckpointConversion, argv: Sequence[str] | None
) -> int:
    """Run the command line of a checkpoint conversion and return the exit status."""
    parser = argparse.ArgumentParser(prog=prog, description=(description or "").split("\n")[0])
    parser.add_argument(
        "--input-dir",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="a run's checkpoints folder, or one checkpoint in it",
    )
    parser.add_argument(
        "--origin-hf-dir",
        required=True,
        type=Path,
        metavar="FOLDER",
        help="Hugging Face checkpoint that the run started from",
    )
    add_output(parser, "--output-dir")
    options = parser.parse_args(argv)
    return run(
        prog,
        lambda: convert(
            options.input_dir, options.origin_hf_dir, options.output, dtype=options.dtype, force=options.force
        ),
    )


def run(prog: str, work: Callable[[], str]) -> int:
    """Do ``work`` and print its result; an error becomes one line and exit status 2."""
    try:
        print(work())
    except (SlimeError, OSError) as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return 2
    return 0
