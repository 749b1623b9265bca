"""What the conversions share: checks before any work, and a progress bar.

Guarantee: a conversion that refuses has written nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from rich.console import Console
from rich.progress import track

from slime.checkpoints.checkpoint_folder import find
from slime.exceptions import SlimeError
from slime.utils.hf_checkpoint import DTYPES, saved_dtype

Item = TypeVar("Item")


class ToolError(SlimeError):
    """A conversion cannot do its work."""


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


def checkpoint_in(folder: Path) -> Path:
    """Return the checkpoint that ``folder`` is or holds.

    Raises:
        ToolError: there is none.
    """
    try:
        place = find(folder)
    except (FileNotFoundError, ValueError) as error:
        raise ToolError(str(error)) from error
    if place is None:
        raise ToolError(f"{folder} holds no checkpoint: name a run's checkpoints folder, or iter_XXXXXXX in it")
    return place
