"""Which checkpoints ``--save-keep`` keeps: refused steps repeat the weights before, and push out no version."""

from __future__ import annotations

import json
from pathlib import Path

from slime.checkpoints.checkpoint_folder import publish
from slime.checkpoints.versions import newest_of_version, saved_versions, superseded, superseded_of_critic


def checkpoint(root: Path, iteration: int, version: int | None = None, steps: int = 0) -> None:
    """Write a checkpoint's folder; a critic's has no weight version."""
    folder = root / f"iter_{iteration:07d}"
    folder.mkdir(parents=True)
    meta = {"rollout_id": iteration - 1, "schedule": {"steps": steps}}
    (folder / "meta.json").write_text(json.dumps(meta if version is None else meta | {"weight_version": version}))


def kept(root: Path) -> list[int]:
    return [int(folder.name.removeprefix("iter_")) for folder in sorted(root.glob("iter_*"))]


def test_refused_steps_push_out_no_version(tmp_path: Path) -> None:
    """Two versions are accepted and then five batches refused."""
    for iteration, version in enumerate([1, 2, 2, 2, 2, 2, 2], start=1):
        checkpoint(tmp_path, iteration, version, steps=version)
        publish(tmp_path, iteration, superseded(tmp_path, iteration, 2))
    assert kept(tmp_path) == [1, 7]
    assert newest_of_version(tmp_path, "1") is not None
    assert [each.weight_version for each in saved_versions(tmp_path)] == ["1", "2"]
    checkpoint(tmp_path, 8, 3, steps=3)
    publish(tmp_path, 8, superseded(tmp_path, 8, 2))
    assert kept(tmp_path) == [7, 8]


def test_steps_without_a_push_between_them_are_different_weights(tmp_path: Path) -> None:
    for iteration in (1, 2, 3):
        checkpoint(tmp_path, iteration, 1, steps=iteration)
    assert [folder.name for folder in superseded(tmp_path, 3, 2)] == ["iter_0000001"]
    assert superseded(tmp_path, 3, 0) == []


def test_a_later_checkpoint_that_a_resumed_run_will_replace_counts_for_nothing(tmp_path: Path) -> None:
    for iteration in (1, 2, 3, 4):
        checkpoint(tmp_path, iteration, iteration, steps=iteration)
    assert superseded(tmp_path, 2, 2) == []


def test_the_critic_keeps_what_the_policy_can_go_back_to(tmp_path: Path) -> None:
    critic = tmp_path / "critic"
    for iteration in (1, 6, 7):
        checkpoint(tmp_path, iteration, iteration)
    for iteration in range(1, 8):
        checkpoint(critic, iteration)
    publish(critic, 7, superseded_of_critic(critic, 7, 2, tmp_path))
    assert kept(critic) == [1, 6, 7]
    assert superseded_of_critic(critic, 7, 0, tmp_path) == []
