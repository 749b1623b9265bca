"""The example method by its script: the whole loop and a resumed run on a real engine; collecting alone, and training on that."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit.logged import logged_records

WAIT_SECONDS = 240
BATCH = 2
OF_THE_METHOD = ("train/imitation_loss", "rollout/example_dropped")


def run_script(repository: Path, run_dir: Path, model: Path, *flags: str) -> str:
    """Run rollouts of two groups with ``flags`` and return what was printed."""
    command = f"""bash extensions/example-method/run_tiny_cpu.sh --run-dir {run_dir} --rollout-batch-size {BATCH}
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


def dumped(dump: str, rollout_id: int) -> list[dict[str, Any]]:
    return torch.load(dump.format(rollout_id=rollout_id), weights_only=False)["samples"]


def logged(run_dir: Path, axis: str) -> list[dict[str, Any]]:
    """Records of one step axis, in order."""
    records = logged_records(run_dir, of_plugins=OF_THE_METHOD)
    return [record for record in records if record["step_key"] == axis]


@pytest.mark.timeout(600)
def test_collect_train_push_save_resume(repository: Path, tmp_path: Path, tiny_random_model: Path) -> None:
    dump, run_dir, save = str(tmp_path / "dump" / "{rollout_id}.pt"), tmp_path / "run", tmp_path / "checkpoints"
    flags = ("--save", str(save), "--save-interval", "2", "--save-debug-rollout-data", dump)
    flags = (*flags, "--num-steps-per-rollout", "2")
    run_script(repository, run_dir, tiny_random_model, "--num-rollout", "3", *flags)
    position = json.loads((save / "rollout" / "example_sums_2.json").read_text())["position"]
    run_script(repository, run_dir, tiny_random_model, "--num-rollout", "4", "--resume", *flags)

    rollouts, steps = logged(run_dir, "rollout/step"), logged(run_dir, "train/step")
    assert [record["rollout/step"] for record in rollouts] == [0, 1, 2, 3]
    assert [record["rollout/weight_version"] for record in rollouts] == [1, 2, 3, 4]
    assert [record["train/step"] for record in steps] == list(range(8))
    assert all(record["train/grad_norm"] > 0 and record["train/imitation_loss"] > 0 for record in steps)
    assert (save / "latest_checkpointed_iteration.txt").read_text().strip() == "4"
    assert all((save / f"iter_000000{iteration}").is_dir() for iteration in (2, 3, 4))

    # The next batch is collected while one is trained on: it may see the push of that one, and has seen the one before.
    versions = [
        {int(version) for sample in dumped(dump, rollout_id) for version in sample["weight_versions"]}
        for rollout_id in range(4)
    ]
    assert versions[0] == {0}
    assert versions[1] <= {0, 1}
    assert versions[2] <= {1, 2}
    assert versions[3] == {3}

    groups = [{sample["group_index"] for sample in dumped(dump, rollout_id)} for rollout_id in range(4)]
    taken = [BATCH + record["rollout/example_dropped"] for record in rollouts]
    starts = [sum(taken[:rollout_id]) for rollout_id in range(4)]
    assert starts[3] == position
    for start, count, found in zip(starts, taken, groups, strict=True):
        assert len(found) == BATCH
        assert found <= set(range(start, start + count))


@pytest.mark.timeout(600)
def test_collect_then_train_on_it(repository: Path, tmp_path: Path, tiny_random_model: Path) -> None:
    dump = str(tmp_path / "dump" / "{rollout_id}.pt")
    flags = ("--num-rollout", "1", "--debug-rollout-only", "--save-debug-rollout-data", dump)
    run_script(repository, tmp_path / "collect", tiny_random_model, *flags)
    samples = dumped(dump, 0)
    assert len(samples) == 8
    assert {sample["metadata"]["turns"] for sample in samples} == {2}
    assert all(0 in sample["loss_mask"] and 1 in sample["loss_mask"] for sample in samples)
    assert len({sample["reward"]["score"] for sample in samples}) > 1

    flags = ("--num-rollout", "1", "--debug-train-only", "--load-debug-rollout-data", dump)
    run_dir = tmp_path / "train"
    assert "policy engine: " not in run_script(repository, run_dir, tiny_random_model, *flags)
    [step] = logged(run_dir, "train/step")
    assert step["train/grad_norm"] > 0
    assert step["train/imitation_loss"] > 0
