"""What the scripts of a folder that start slime/train_async.py themselves would become."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from slime.args import Arguments
from slime.arguments.dry_run import of_machine
from slime.arguments.parser import parser_for, read_arguments

ROOT = Path(__file__).resolve().parents[2]
CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
# What a script would become; words end in NUL. A script that becomes another one is followed.
SHOW = r"""
exec() { if [ "$1" = bash ]; then command "$@"; else printf '%s\0' "$PYTHONPATH" "$@"; fi; }
export -f exec
cd "$1"; shift
bash "$@" --dry-run
"""


@dataclass(frozen=True)
class Scripts:
    """The scripts of a folder."""

    folder: Path

    @cache  # noqa: B019 - it lives as long as the tests
    def words(self, script: str, place: str = "", *given: str) -> tuple[str, ...]:
        """Return import path and words of the command that a script becomes in a folder, with variables NAME=VALUE."""
        path = os.path.relpath(self.folder / script, ROOT / place)
        environment = CLEAN | dict(each.split("=", 1) for each in given)
        command = ["bash", "-euc", SHOW, "bash", str(ROOT / place), path]
        output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout
        return tuple(output.removesuffix("\0").split("\0"))

    def planned(self, script: str, *given: str) -> Arguments:
        """Return the arguments of a script's run; they must be valid on the machine that it is for."""
        _, _, program, *flags = self.words(script, "", *given)
        assert program == str(ROOT / "slime/train_async.py")
        args, problems = read_arguments(parser_for(flags), [each for each in flags if each != "--dry-run"])
        assert [problem for problem in problems if not of_machine(problem)] == []
        return args
