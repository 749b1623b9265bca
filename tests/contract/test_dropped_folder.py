"""A method folder and an agent folder dropped into the repository need no line anywhere else.

In a copy of the repository with two new folders, the linters, the rules of the house, the reference pages and the launcher
accept both, and each trains one step of the tiny model with the real trainer and engines.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from groundwork.network import find_available_port
from lab.testkit.logged import logged_records
from tests.contract.test_method_folder import METHOD, ROLLOUT
from tests.helpers.program_copy import copied

pytestmark = pytest.mark.slow

TASK = '''"""What a run on sums is."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from openclaw.launch.task import EvalSet, Split, TaskConfig, TaskProfile, variable


@dataclass(frozen=True, kw_only=True)
class Task(TaskConfig):
    """Sums of two numbers."""

    name = "sums"
    generate = "generate_sums.generate"
    columns = ("--input-key", "question", "--label-key", "answer")
    evaluation = EvalSet("sums", "score")
    profiles = {
        "gpu8": TaskProfile(),
        "tiny": TaskProfile(
            {
                **{"NUM_GPUS": 2, "ACTOR_GPUS": 1, "ROLLOUT_GPUS": 1, "TP": 1, "BATCH_SIZE": 2, "NUM_ROLLOUT": 1},
                **{"N_SAMPLES": 2, "MAX_RESPONSE_LENGTH": 8, "MAX_TOKENS_PER_GPU": 512, "CONTEXT_LENGTH": 512},
            },
            device="cpu",
        ),
    }

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
from slime.rollout import sglang_rollout
from slime.utils.types import Sample


def add_custom_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flag of sums."""
    parser.add_argument("--sums-carry", type=int, default=1, help="digits to carry")


async def generate(args: Arguments, sample: Sample, sampling_params: dict[str, Any]) -> Sample:
    """Return a reply of the engine, rewarded if its number is odd: nobody can answer so early."""
    sample = await sglang_rollout.generate(args, sample, sampling_params)
    sample.reward = {"score": float((sample.index or 0) % 2)}
    return sample
'''
HEADER = '"""A method for this test."""\n\n'
RUN_SECONDS = 600
"""A run starts an engine and a trainer, which takes minutes on a busy machine."""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """A copy of the tracked files, with a new method folder and a new agent folder in it."""
    root = copied(repository, tmp_path_factory.mktemp("copy"))
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


def output(root: Path, *words: str, **environment: str) -> str:
    """Return what a command in the copy prints; it must succeed."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    paths = {"PYTHONPATH": f"{root}:{root / 'slime'}"}
    done = subprocess.run(words, cwd=root, env=kept | paths | environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


def changed(root: Path) -> list[str]:
    """Return the files that are not as the copy had them."""
    return output(root, "git", "ls-files", "-mo", "--exclude-standard").splitlines()


def test_the_launcher_plans_both(copy: Path) -> None:
    launch = (sys.executable, "-m", "openclaw.launch")
    method = output(copy, *launch, "--method", "foresight", "--dry-run", FORESIGHT_WEIGHT="0.75")
    assert method.startswith("method foresight, profile gpu8")
    assert "FORESIGHT_WEIGHT=0.75" in method
    task = output(
        copy, *launch, "--task", "sums", "--dry-run", "--sums-carry", "2", SUMS_LARGEST="5", EVAL_INTERVAL="3"
    )
    assert task.startswith("task sums, profile gpu8")
    assert "SUMS_LARGEST=5" in task
    assert "--sums-carry 2" in task
    shown = output(copy, *launch, "--task", "sums", "--help")
    assert "SUMS_LARGEST (default: 9)" in " ".join(shown.split())


def test_the_linters_accept_both(copy: Path) -> None:
    if ruff := shutil.which("ruff"):
        output(copy, ruff, "check", "--no-cache", "sums-rl", "openclaw-foresight")
    if pyright := shutil.which("pyright"):
        output(copy, pyright, "sums-rl")


def test_only_their_own_reference_pages_are_new(copy: Path) -> None:
    output(copy, sys.executable, "scripts/reference_pages.py")
    pages = ["openclaw-foresight/reference.md", "sums-rl/reference.md"]
    assert changed(copy) == pages
    method, task = ((copy / page).read_text() for page in pages)
    assert "| `FORESIGHT_WEIGHT` | `0.5` | weight of what comes next |" in method
    assert "| `no_foresight` | Nothing followed" in method
    assert "| `SUMS_LARGEST` | `9` | largest number of a sum |" in task


def test_the_rules_of_the_house_accept_both(copy: Path) -> None:
    rules = (
        "tests/unit/test_house_rules.py",
        "tests/unit/test_documentation.py",
        "tests/unit/seeing/test_reasons.py",
        "tests/contract/test_method_folder.py",
    )
    output(copy, sys.executable, "scripts/reference_pages.py")
    output(copy, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *rules)


def tiny_run(copy: Path, folder: Path, model: Path, *words: str, **variables: str) -> list[dict[str, Any]]:
    """Train one step of the tiny model by the launcher, and return the logged records of steps."""
    command = (sys.executable, "-m", "openclaw.launch", *words)
    places = {"RUN_DIR": str(folder), "HF_CKPT": str(model), "OMP_NUM_THREADS": "1", "OPENCLAW_FUSES": "off"}
    printed = output(copy, *command, **places, **variables)
    records = logged_records(folder)
    steps = [record for record in records if record["step_key"] == "train/step"]
    assert len(steps) == 1, printed
    return steps


def write_log(path: Path) -> None:
    """Write conversations with a reaction, whose replies are long enough for the rules on what is trained."""
    reply = "Count one further from there: the sum is {}, and that is the whole answer."
    said = (("user", "What is {}+1?"), ("assistant", reply), ("user", "Thank you, {} is what I wanted to know."))
    talks = [[{"role": role, "content": text.format(number)} for role, text in said] for number in (3, 4)]
    path.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))


@pytest.fixture(scope="module")
def steps(
    copy: Path, tmp_path_factory: pytest.TempPathFactory, tiny_random_model: Path
) -> dict[str, list[dict[str, Any]]]:
    """The steps of a tiny run of each folder. The runs go side by side and do not know each other."""
    folder = tmp_path_factory.mktemp("runs")
    write_log(folder / "log.jsonl")
    learns = {"DATA_PATH": str(folder / "log.jsonl"), "BATCH_SIZE": "2", "NUM_ROLLOUT": "1"}
    learns["PORT"] = str(find_available_port())
    method = ("--method", "foresight", "--profile", "tiny_cpu")
    task = ("--task", "sums", "--profile", "tiny")
    with ThreadPoolExecutor() as pool:
        trained = pool.submit(tiny_run, copy, folder / "method", tiny_random_model, *method, **learns)
        played = pool.submit(tiny_run, copy, folder / "task", tiny_random_model, *task)
    return {"method": trained.result(), "task": played.result()}


@pytest.mark.long
@pytest.mark.timeout(RUN_SECONDS)
def test_the_method_trains(steps: dict[str, list[dict[str, Any]]]) -> None:
    """Every reward is 0, so that nothing but the method's own teacher gives a gradient, by the profile's learning rate."""
    [step] = steps["method"]
    assert step["train/grad_norm"] > 0
    assert step["train/lr-pg_0"] == 3e-4


@pytest.mark.long
@pytest.mark.timeout(RUN_SECONDS)
def test_the_task_trains(steps: dict[str, list[dict[str, Any]]]) -> None:
    [step] = steps["task"]
    assert step["train/grad_norm"] > 0
