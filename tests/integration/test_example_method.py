"""The example method by its script: the whole loop on a real engine, and training on what it collected.

The long tests also resume a run, and collect alone.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit.logged import logged_records

pytestmark = pytest.mark.timeout(600)

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


class Trained:
    """Where a run of the method has left its files."""

    def __init__(self, folder: Path) -> None:
        self.run_dir, self.save = folder / "run", folder / "checkpoints"
        self.dump = str(folder / "dump" / "{rollout_id}.pt")

    def train(self, repository: Path, model: Path, *flags: str) -> None:
        """Run rollouts of two steps each."""
        flags = (*flags, "--save", str(self.save), "--save-interval", "2", "--num-steps-per-rollout", "2")
        run_script(repository, self.run_dir, model, *flags, "--save-debug-rollout-data", self.dump)


@pytest.fixture(scope="module")
def trained(repository: Path, tmp_path_factory: pytest.TempPathFactory, tiny_random_model: Path) -> Trained:
    """A run of three rollouts."""
    trained = Trained(tmp_path_factory.mktemp("example"))
    trained.train(repository, tiny_random_model, "--num-rollout", "3")
    return trained


def check_run(trained: Trained, rollouts: int) -> list[int]:
    """Check logs, checkpoints, weight versions and groups of a run; return where each rollout began in the data."""
    records, steps = logged(trained.run_dir, "rollout/step"), logged(trained.run_dir, "train/step")
    assert [record["rollout/step"] for record in records] == list(range(rollouts))
    assert [record["rollout/weight_version"] for record in records] == list(range(1, rollouts + 1))
    assert [record["train/step"] for record in steps] == list(range(2 * rollouts))
    assert all(record["train/grad_norm"] > 0 and record["train/imitation_loss"] > 0 for record in steps)
    assert (trained.save / "latest_checkpointed_iteration.txt").read_text().strip() == str(rollouts)
    assert all((trained.save / f"iter_000000{iteration}").is_dir() for iteration in range(2, rollouts + 1))

    # The next batch is collected while one is trained on: it may see the push of that one, and has seen the one before.
    versions = [
        {int(version) for sample in dumped(trained.dump, rollout_id) for version in sample["weight_versions"]}
        for rollout_id in range(rollouts)
    ]
    assert versions[0] == {0}
    assert versions[1] <= {0, 1}
    assert versions[2] <= {1, 2}
    assert all(version == {3} for version in versions[3:]), "after the resume"

    taken = [BATCH + record["rollout/example_dropped"] for record in records]
    starts = [sum(taken[:rollout_id]) for rollout_id in range(rollouts + 1)]
    for rollout_id, (start, count) in enumerate(zip(starts, taken, strict=False)):
        found = {sample["group_index"] for sample in dumped(trained.dump, rollout_id)}
        assert len(found) == BATCH
        assert found <= set(range(start, start + count))
    return starts


def position(trained: Trained) -> int:
    """Return where the data goes on after the third rollout."""
    return json.loads((trained.save / "rollout" / "example_sums_2.json").read_text())["position"]


def test_collect_train_push_save(trained: Trained) -> None:
    assert check_run(trained, 3)[3] == position(trained)


def check_collected(samples: list[dict[str, Any]]) -> None:
    assert len(samples) == 8
    assert {sample["metadata"]["turns"] for sample in samples} == {2}
    assert all(0 in sample["loss_mask"] and 1 in sample["loss_mask"] for sample in samples)
    assert len({sample["reward"]["score"] for sample in samples}) > 1


def test_training_on_what_was_collected(
    repository: Path, tmp_path: Path, tiny_random_model: Path, trained: Trained
) -> None:
    check_collected(dumped(trained.dump, 0))
    flags = ("--num-rollout", "1", "--debug-train-only", "--load-debug-rollout-data", trained.dump)
    assert "policy engine: " not in run_script(repository, tmp_path, tiny_random_model, *flags)
    [step] = logged(tmp_path, "train/step")
    assert step["train/grad_norm"] > 0
    assert step["train/imitation_loss"] > 0


@pytest.mark.long
def test_resuming(repository: Path, tmp_path: Path, tiny_random_model: Path) -> None:
    trained = Trained(tmp_path)
    trained.train(repository, tiny_random_model, "--num-rollout", "3")
    goes_on = position(trained)
    trained.train(repository, tiny_random_model, "--num-rollout", "4", "--resume")
    assert check_run(trained, 4)[3] == goes_on


@pytest.mark.long
def test_collecting_alone(repository: Path, tmp_path: Path, tiny_random_model: Path) -> None:
    dump = str(tmp_path / "dump" / "{rollout_id}.pt")
    flags = ("--num-rollout", "1", "--debug-rollout-only", "--save-debug-rollout-data", dump)
    run_script(repository, tmp_path / "collect", tiny_random_model, *flags)
    check_collected(dumped(dump, 0))
