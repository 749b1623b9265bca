"""The example method by its script, in two halves: collecting on a real engine, then training on what was collected."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch

WAIT_SECONDS = 240


def run_script(repository: Path, run_dir: Path, model: Path, *flags: str) -> str:
    """Run one rollout of two groups with ``flags`` and return what was printed."""
    command = f"""bash extensions/example-method/run_tiny_cpu.sh --run-dir {run_dir} --num-rollout 1 --rollout-batch-size 2
        --rollout-max-response-len 24 --max-tokens-per-gpu 512 --lr 1e-3""".split()
    environment = {**os.environ, "HF_CKPT": str(model)}
    result = subprocess.run(
        [*command, *flags],
        cwd=repository,
        env=environment,
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.mark.timeout(600)
def test_collect_then_train_on_it(repository: Path, tmp_path: Path, tiny_random_model: Path) -> None:
    dump = str(tmp_path / "dump" / "{rollout_id}.pt")
    flags = ("--debug-rollout-only", "--save-debug-rollout-data", dump)
    run_script(repository, tmp_path / "collect", tiny_random_model, *flags)
    samples = torch.load(dump.format(rollout_id=0), weights_only=False)["samples"]
    assert len(samples) == 8
    assert {sample["metadata"]["turns"] for sample in samples} == {2}
    assert all(0 in sample["loss_mask"] and 1 in sample["loss_mask"] for sample in samples)
    assert len({sample["reward"]["score"] for sample in samples}) > 1

    flags = ("--debug-train-only", "--load-debug-rollout-data", dump)
    run_dir = tmp_path / "train"
    assert "policy engine: " not in run_script(repository, run_dir, tiny_random_model, *flags)
    records = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    [step] = [record for record in records if "train/imitation_loss" in record]
    assert step["train/grad_norm"] > 0
    assert step["train/imitation_loss"] > 0
