"""Starts the janitor that cleans up after this process, however it ends; see `slime.utils.janitor`."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil

from slime.utils.janitor import start_time

_JANITOR = Path(__file__).with_name("janitor.py")


def start_janitor(folder: str | Path, *, detached: bool = False) -> subprocess.Popen[str]:
    """Start the process that removes ``folder`` when this one is gone.

    A detached one is no child, so it outlives an owner that ends all its children last thing.
    """
    janitor = subprocess.Popen(
        [sys.executable, "-I", "-S", str(_JANITOR), str(folder), *(["detached"] if detached else [])],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if detached:
        janitor.wait()
    return janitor


def entrust(janitor: subprocess.Popen[str], processes: Sequence[psutil.Process]) -> None:
    """Tell the janitor which processes to end when their owner is gone."""
    for process in processes:
        started = start_time(process.pid)
        if process.pid not in (janitor.pid, os.getpid()) and started is not None:
            _tell(janitor, f"{process.pid} {started}")


def entrust_file(janitor: subprocess.Popen[str], path: str) -> None:
    """Tell the janitor to remove the file at the absolute ``path`` too."""
    _tell(janitor, path)


def _tell(janitor: subprocess.Popen[str], line: str) -> None:
    assert janitor.stdin is not None
    janitor.stdin.write(f"{line}\n")
    janitor.stdin.flush()
