"""Start helpers that outlive this process, such as the janitor that cleans up after it (`groundwork.janitor`)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from groundwork.janitor import start_time

if TYPE_CHECKING:
    import psutil

_JANITOR = Path(__file__).with_name("janitor.py")


def start_janitor(folder: str | Path, *, detached: bool = False) -> subprocess.Popen[str]:
    """Start the process that removes ``folder`` after this process ends.

    A detached janitor is not a child, so it survives an owner that kills all its children before it exits.
    """
    janitor = start_script(_JANITOR, str(folder), *(["detached"] if detached else []))
    if detached:
        janitor.wait()
    return janitor


def start_script(script: Path, *words: str) -> subprocess.Popen[str]:
    """Start a standard-library-only script that receives lines from :func:`tell` until this process ends."""
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(script), *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def entrust(janitor: subprocess.Popen[str], processes: Sequence[psutil.Process]) -> None:
    """Tell the janitor which processes to end after their owner."""
    for process in processes:
        started = start_time(process.pid)
        if process.pid not in (janitor.pid, os.getpid()) and started is not None:
            tell(janitor, f"{process.pid} {started}")


def entrust_path(janitor: subprocess.Popen[str], path: str) -> None:
    """Tell the janitor to remove the file or folder at the absolute ``path`` too."""
    tell(janitor, path)


def tell(script: subprocess.Popen[str], line: str) -> None:
    """Write a line to a script from :func:`start_script`."""
    assert script.stdin is not None
    script.stdin.write(f"{line}\n")
    script.stdin.flush()
