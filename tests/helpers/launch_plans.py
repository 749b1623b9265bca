"""What the scripts of an agent folder would start."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from openclaw.launch.__main__ import asked_for, build_parser, recipe_of
from openclaw.launch.plan import Plan
from openclaw.launch.resolve import make_plan
from openclaw.launch.task import TaskConfig
from slime.args import Arguments
from slime.arguments.dry_run import of_machine
from tests.page_commands.in_process import run_call
from tests.page_commands.shell import Call

ROOT = Path(__file__).resolve().parents[2]
CLEAN = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
NO_MODULES = Path(os.devnull)
# What a script would become: its words, an empty one, and its environment. All end in NUL.
SHOW = r"""
exec() { printf '%s\0' "$@" ""; env -0; }
export -f exec
cd "$1"; shift
bash "$@"
"""


def becomes(script: Path, folder: Path, *words: str, **environment: str) -> Call:
    """Return the call of Python that a script with ``words`` becomes when it starts in ``folder``."""
    command = ["bash", "-euc", SHOW, "bash", str(folder), os.path.relpath(script, folder), *words]
    output = subprocess.run(command, env=CLEAN | environment, capture_output=True, text=True, check=True).stdout
    called, _, environment = output.removesuffix("\0").partition("\0\0")
    program, *given = called.split("\0")
    values = dict(each.split("=", 1) for each in environment.split("\0") if not each.startswith("BASH_FUNC_"))
    return Call(program, str(folder), tuple(given), "", values)


def ended(script: Path, *words: str, folder: Path = ROOT, **environment: str) -> tuple[int, str]:
    """Return the exit code of a script that starts in ``folder``, and what it printed; its program runs in this process.

    ``tests/integration/test_agent_scripts.py`` shows for scripts of every folder that a process of its own says the same.
    """
    return run_call(becomes(script, folder, *words, **environment), NO_MODULES)


def task_plan(words: list[str], **environment: str) -> Plan:
    """Return the plan of words of the launcher, such as ``--task swe --model qwen3-4B``."""
    found = asked_for(words)
    assert found is not None
    options, extra = build_parser(found).parse_known_args(words)
    return make_plan(recipe_of(options, found), extra, CLEAN | environment, options.name)


def task_of(plan: Plan) -> TaskConfig:
    """Return the task of a plan."""
    assert isinstance(plan.own, TaskConfig)
    return plan.own


@dataclass(frozen=True)
class Scripts:
    """The scripts of a folder."""

    folder: Path

    @cache  # noqa: B019 - it lives as long as the tests
    def words(self, script: str, place: str = "") -> tuple[str, ...]:
        """Return import path and words of the command that a script becomes in a folder."""
        call = becomes(self.folder / script, ROOT / place)
        return (call.environment["PYTHONPATH"], call.program, *call.words)

    def plan(self, script: str, *given: str) -> Plan:
        """Return the plan of a script with variables NAME=VALUE; it must be valid on the machine that it is for."""
        _, _, _, module, *words = self.words(script)
        assert module == "openclaw.launch"
        plan = task_plan(words, **dict(each.split("=", 1) for each in given))
        assert [problem for problem in plan.problems if not of_machine(problem)] == []
        return plan

    def planned(self, script: str, *given: str) -> Arguments:
        """Return the arguments of that plan."""
        return self.plan(script, *given).args
