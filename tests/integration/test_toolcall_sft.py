"""Supervised fine-tuning on conversations of oracles of tool tasks, as the script of ``toolcall-rl`` starts it, with a tiny model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.tasks.toolcall.__main__ import main
from tests.helpers.launch_plans import Scripts, task_plan

pytestmark = pytest.mark.integration
MACHINE = (
    *("--device", "cpu", "--num-gpus", "1", "--actor-num-gpus-per-node", "1", "--num-epoch", "2"),
    *("--rollout-batch-size", "10", "--global-batch-size", "10", "--max-tokens-per-gpu", "4096", "--lr", "1e-3"),
)


def test_a_tiny_model_starts_from_oracles(repository: Path, tiny_random_model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "sft.jsonl"
    assert main(["sft", str(rows), "--family", "get_value", "--family", "add_two", "--count", "10"]) == 0
    given = {
        "HF_CKPT": str(tiny_random_model),
        "PROMPT_DATA": str(rows),
        "RUN_DIR": str(tmp_path),
        "SAVE_CKPT": str(tmp_path / "saved"),
        "MODEL_ARGS_ROTARY_BASE": "10000",
    }
    _, _, _, _, *words = Scripts(repository / "toolcall-rl").words("retool_qwen3_4b_sft.sh")
    # The model is not of the 4B shape that the script states.
    shape = words.index("--model")
    plan = task_plan(words[:shape] + words[shape + 2 :], **given)
    _, program, *flags = plan.command
    environment = {**os.environ, "PYTHONPATH": plan.environment["PYTHONPATH"]}
    command = [sys.executable, program, *flags, *MACHINE]
    done = subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    losses = [float(line.split("loss ")[1].split()[0]) for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.3
    assert (tmp_path / "saved").is_dir()
