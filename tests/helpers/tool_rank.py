"""Command line tools in a process that has imported torch already: starting Python for each would take most of a test's time."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
import sys
from pathlib import Path

from lab.testkit import trainer


def run_tools(commands: list[list[str]], out: Path) -> list[tuple[int, str]]:
    """Run the scripts with their arguments, one after the other in one new process; return exit status and stderr of each."""
    trainer.on_ranks(1, _run_all, commands, str(out))
    return [tuple(outcome) for outcome in json.loads(out.read_text())]


def _run_all(rank: int, world_size: int, commands: list[list[str]], out: str) -> None:
    outcomes = []
    for command in commands:
        sys.argv, errors, status = command, io.StringIO(), 0
        sys.path.insert(0, str(Path(command[0]).parent))  # as Python does with a script
        with contextlib.redirect_stderr(errors):
            try:
                runpy.run_path(command[0], run_name="__main__")
            except SystemExit as end:
                status = int(end.code or 0)
        outcomes.append((status, errors.getvalue()))
    Path(out).write_text(json.dumps(outcomes))
