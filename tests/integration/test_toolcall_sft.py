"""Supervised fine-tuning on conversations of oracles of tool tasks, as the script of ``toolcall-rl`` starts it, with a tiny model."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from agentrl.tasks.toolcall.__main__ import main
from tests.contract.test_toolcall_scripts import words

pytestmark = pytest.mark.integration
MACHINE = (
    *("--device", "cpu", "--num-gpus", "1", "--actor-num-gpus-per-node", "1", "--num-epoch", "2"),
    *("--rollout-batch-size", "10", "--global-batch-size", "10", "--max-tokens-per-gpu", "4096", "--lr", "1e-3"),
)


def test_a_tiny_model_starts_from_oracles(repository: Path, tiny_random_model: Path, tmp_path: Path) -> None:
    rows = tmp_path / "sft.jsonl"
    assert main(["sft", str(rows), "--family", "get_value", "--family", "add_two", "--count", "10"]) == 0
    given = (
        f"HF_CKPT={tiny_random_model}",
        f"PROMPT_DATA={rows}",
        f"RUN_DIR={tmp_path}",
        f"SAVE_CKPT={tmp_path / 'saved'}",
    )
    path, _, program, *flags = words("retool_qwen3_4b_sft.sh", "", *given)
    # The flags before it state the shape of a 4B model.
    flags = [each for each in flags[flags.index("--hf-checkpoint") :] if each != "--dry-run"]
    environment = {**os.environ, "PYTHONPATH": path}
    command = [sys.executable, program, *flags, *MACHINE]
    done = subprocess.run(
        command, cwd=repository, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    losses = [float(line.split("loss ")[1].split()[0]) for line in done.stdout.splitlines() if line.startswith("step ")]
    assert len(losses) == 4
    assert losses[-1] < losses[0] - 0.3
    assert (tmp_path / "saved").is_dir()
