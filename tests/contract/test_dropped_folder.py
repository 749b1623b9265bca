"""A method folder and an agent folder dropped into the repository need no line anywhere else.

In a copy of the repository with two new folders, the linters, the rules of the house and the launcher accept both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contract.test_method_folder import METHOD, ROLLOUT

pytestmark = pytest.mark.slow

TASK = '''"""What a run on sums is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from openclaw.launch.task import EvalSet, Split, TaskConfig, variable


@dataclass(frozen=True, kw_only=True)
class Task(TaskConfig):
    """Sums of two numbers."""

    name = "sums"
    generate = "generate_sums.generate"
    columns = ("--input-key", "question", "--label-key", "answer")
    evaluation = EvalSet("sums", "score")

    largest: int = variable("SUMS_LARGEST", 9, "largest number of a sum", minimum=1)

    def rows(self, split: Split, file: Path) -> int:
        """Write a row for each sum."""
        rows = [{"question": f"{one}+1", "answer": str(one + 1)} for one in range(self.largest)]
        file.write_text("".join(json.dumps(row) + "\\n" for row in rows))
        return len(rows)
'''
GENERATE = '''"""Answers to sums."""

from __future__ import annotations

import argparse
from typing import Any

from slime.args import Arguments
from slime.utils.types import Sample


def add_custom_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flag of sums."""
    parser.add_argument("--sums-carry", type=int, default=1, help="digits to carry")


async def generate(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Return the sample as it is."""
    return sample
'''
HEADER = '"""A method for this test."""\n\n'


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A copy of the tracked files, with a new method folder and a new agent folder in it."""
    root = tmp_path_factory.mktemp("copy")
    tracked = subprocess.run(
        ["git", "ls-files", "-coz", "--exclude-standard"], cwd=repository, capture_output=True, text=True, check=True
    )
    for name in filter(None, tracked.stdout.split("\0")):
        if (repository / name).is_file() and not name.endswith(".safetensors"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(repository / name, root / name)
    (root / ".venv").symlink_to(repository / ".venv")
    method, task = root / "openclaw-foresight", root / "sums-rl"
    method.mkdir()
    task.mkdir()
    (method / "openclaw_foresight_method.py").write_text(HEADER + METHOD.lstrip())
    (method / "openclaw_foresight_rollout.py").write_text(HEADER + ROLLOUT.lstrip())
    (task / "sums_task.py").write_text(TASK)
    (task / "generate_sums.py").write_text(GENERATE)
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    subprocess.run(["git", "add", "-A"], cwd=root, check=True)
    return root


def said(root: Path, *words: str, **environment: str) -> str:
    """Return what a command in the copy prints; it must succeed."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    paths = {"PYTHONPATH": f"{root}:{root / 'slime'}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(words, cwd=root, env=kept | paths | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def test_the_launcher_plans_both(copy: Path) -> None:
    launch = (sys.executable, "-m", "openclaw.launch")
    method = said(copy, *launch, "--method", "foresight", "--dry-run", FORESIGHT_WEIGHT="0.75")
    assert method.startswith("method foresight, profile gpu8")
    assert "FORESIGHT_WEIGHT=0.75" in method
    task = said(copy, *launch, "--task", "sums", "--dry-run", "--sums-carry", "2", SUMS_LARGEST="5", EVAL_INTERVAL="3")
    assert task.startswith("task sums, profile gpu8")
    assert "SUMS_LARGEST=5" in task
    assert "--sums-carry 2" in task
    shown = said(copy, *launch, "--task", "sums", "--help")
    assert "SUMS_LARGEST (default: 9)" in " ".join(shown.split())


def test_the_linters_accept_both(copy: Path) -> None:
    if ruff := shutil.which("ruff"):
        said(copy, ruff, "check", "--no-cache", "sums-rl", "openclaw-foresight")
    if pyright := shutil.which("pyright"):
        said(copy, pyright, "sums-rl")


def test_the_rules_of_the_house_accept_both(copy: Path) -> None:
    rules = (
        "tests/unit/test_house_rules.py",
        "tests/unit/test_documentation.py",
        "tests/contract/test_method_folder.py",
    )
    # The pages that a program writes, and the list of reasons, are about the methods that ship.
    shipped = "not reference_pages and not reason_against_training"
    said(copy, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", shipped, *rules)
