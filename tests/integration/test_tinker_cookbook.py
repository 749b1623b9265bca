"""Tinker's cookbook, unmodified, against our server on the CPU: its supervised loop's loss falls, its loop by reward learns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers import boxed_model
from tests.helpers.tinker_server import REPOSITORY, TinkerServer, running

pytest.importorskip("tinker", reason="install the tinker extra")
COOKBOOK = REPOSITORY / ".cache" / "tinker_cookbook" / "lib"
pytestmark = [
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not COOKBOOK.is_dir(), reason="needs the cookbook: bash scripts/setup_tinker_cookbook.sh"),
]
NAME = "Qwen/Qwen3-8B"
"""A name that the cookbook has a renderer for; what answers to it is tiny."""
SUFFIX = " Provide a numerical answer without units, written inside \\boxed{}."
QUESTIONS = [f"What is {first} plus {second}?" for first in range(8) for second in range(8)]
TIMES = 2
WISHED = "2"
"""The only right answer, to whatever question."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which the loops find model and data by the names that they have on the hub."""
    folder = tmp_path_factory.mktemp("cookbook")
    boxed_model.build(folder / NAME, [question + SUFFIX for question in QUESTIONS])
    chats = [
        {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": "It is 3, I think."}]}
        for question in QUESTIONS
    ]
    sums = [{"question": question, "answer": f"#### {WISHED}"} for question in QUESTIONS * TIMES]
    for name, rows in (("HuggingFaceH4/no_robots", chats), ("openai/gsm8k/main", sums)):
        (folder / name).mkdir(parents=True)
        (folder / name / "train.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n")
    configuration = "configs:\n- config_name: main\n  data_files: main/train.jsonl\n"
    (folder / "openai" / "gsm8k" / "README.md").write_text(f"---\n{configuration}---\n")
    return folder


@pytest.fixture(scope="module")
def cookbook_server(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TinkerServer]:
    with running(place / NAME, tmp_path_factory.mktemp("tinker"), NAME) as started:
        yield started


def run_loop(server: TinkerServer, place: Path, recipe: str, *settings: str) -> list[dict[str, float]]:
    """Run a loop of the cookbook and return the metrics of its steps."""
    log = place / f"log-{recipe}"
    shutil.rmtree(log, ignore_errors=True)
    environment = {
        **{**os.environ, "TINKER_BASE_URL": server.url, "TINKER_API_KEY": "tml-of-a-test", "PYTHONPATH": str(COOKBOOK)},
        **{"HF_HUB_OFFLINE": "1", "HF_DATASETS_CACHE": str(place / "datasets"), "WANDB_MODE": "disabled"},
    }
    given = [f"model_name={NAME}", f"log_path={log}", "lora_rank=8", *settings]
    done = subprocess.run(
        [sys.executable, "-m", f"tinker_cookbook.recipes.{recipe}", *given],
        cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return [json.loads(line) for line in (log / "metrics.jsonl").read_text().splitlines()]


def test_the_supervised_loop_runs_unmodified_and_its_loss_falls(cookbook_server: TinkerServer, place: Path) -> None:
    steps = run_loop(cookbook_server, place, "sl_loop", "batch_size=8", "learning_rate=0.02", "save_every=4")
    losses = [step["train_mean_nll"] for step in steps if "train_mean_nll" in step]
    assert len(losses) == len(QUESTIONS) // 8
    assert losses[-1] < 0.7 * losses[0]
    checkpoints = (place / "log-sl_loop" / "checkpoints.jsonl").read_text()
    assert "/weights/final" in checkpoints
    assert "/sampler_weights/final" in checkpoints


def test_the_loop_by_reward_runs_unmodified_and_its_reward_rises(cookbook_server: TinkerServer, place: Path) -> None:
    steps = run_loop(
        cookbook_server, place, "rl_loop",
        "loss_fn=importance_sampling", "batch_size=8", "group_size=8", "learning_rate=0.002", "max_tokens=8", "save_every=0",
    )  # fmt: skip
    rewards = [step["reward/total"] for step in steps if "reward/total" in step]
    assert len(rewards) == TIMES * len(QUESTIONS) // 8
    assert rewards[0] < 0.45, "one in four is right at first"
    assert rewards[-1] > 0.7
