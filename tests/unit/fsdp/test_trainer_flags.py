"""What flags of the trainer do, on one rank with a tiny random model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from lab.testkit import trainer
from slime.backends.fsdp_utils.backend import FSDPTrainActor
from slime.exceptions import CheckpointError
from tests.helpers import trainer_ranks


@contextmanager
def started(model: Path, **flags: Any) -> Iterator[tuple[FSDPTrainActor, int]]:
    """A trainer of one rank and the rollout it starts with."""
    args = trainer.trainer_args(model, max_tokens_per_gpu=200, **flags)
    try:
        actor, start = trainer_ranks.start_actor(args)
        try:
            yield actor, start
        finally:
            actor.shutdown()
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def weights(model: Any) -> dict[str, torch.Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def shard(actor: FSDPTrainActor, seed: int = 0) -> dict[str, Any]:
    return trainer.shards(actor.args, trainer.train_data(3, seed=seed), 1)[0]


def test_passes_are_steps_on_one_prepared_batch(tiny_random_model: Path) -> None:
    """Equal bit for bit to the back end's own steps, with the old log probabilities of before the first."""
    with started(tiny_random_model) as (actor, _):
        metrics = actor.train(0, shard(actor), passes=3) or {}
        after, version = weights(actor.backend.model), actor.versions()
        assert actor.backend.schedule.steps == 3
    steps = metrics["steps"]
    assert [step["train/ppo_kl"] == 0.0 for step in steps] == [True, False, False], "the ratio moves from pass to pass"
    assert metrics["train/loss"] == pytest.approx(sum(step["train/loss"] for step in steps) / 3)
    assert version == ("0", "1"), "one new version"
    with started(tiny_random_model) as (actor, _):
        actor.prepare(0, shard(actor))
        data = actor._data
        assert data is not None
        actor.backend.before_steps()
        for _ in range(3):
            actor.backend.optimizer_step(data, 0, 0)
        assert all(torch.equal(value, after[name]) for name, value in weights(actor.backend.model).items())


def test_a_pass_that_is_held_back_is_the_last(tiny_random_model: Path) -> None:
    with started(tiny_random_model, fuses=["train/loss<1e9"]) as (actor, _):
        before = weights(actor.backend.model)
        metrics = actor.train(0, shard(actor), passes=3) or {}
        assert [step["train/fuse_held"] for step in metrics["steps"]] == [1.0]
        assert all(torch.equal(value, before[name]) for name, value in weights(actor.backend.model).items())


def test_only_the_named_parameters_move_and_a_checkpoint_holds_all(tiny_random_model: Path, tmp_path: Path) -> None:
    flags = {"only_train_params_name_list": [r"layers\.0\."], "save": str(tmp_path)}
    with started(tiny_random_model, **flags) as (actor, _):
        before = weights(actor.backend.model)
        actor.train(0, shard(actor))
        after = weights(actor.backend.model)
        actor.save(0)
        actor.publish(0)
    moved = {name for name, value in after.items() if not torch.equal(value, before[name])}
    assert moved
    assert all("layers.0." in name for name in moved)
    with started(tiny_random_model, resume=True, **flags) as (actor, start):
        assert start == 1
        assert all(torch.equal(value, after[name]) for name, value in weights(actor.backend.model).items())
    with pytest.raises(CheckpointError, match=r"written with --only-train-params-name-list layers"):
        with started(tiny_random_model, resume=True, save=str(tmp_path)):
            pass


def test_the_reference_follows_the_policy_and_is_in_the_checkpoint(tiny_random_model: Path, tmp_path: Path) -> None:
    flags = {"use_kl_loss": True, "kl_loss_coef": 0.1, "ref_update_interval": 2, "save": str(tmp_path)}
    with started(tiny_random_model, **flags) as (actor, _):
        assert actor.backend.reference is not None
        start = weights(actor.backend.reference)
        actor.train(0, shard(actor))
        assert all(torch.equal(value, start[name]) for name, value in weights(actor.backend.reference).items())
        actor.train(1, shard(actor, seed=1))
        followed = weights(actor.backend.reference)
        policy = weights(actor.backend.model)
        assert all(torch.equal(value, policy[name]) for name, value in followed.items())
        actor.train(2, shard(actor, seed=2))
        actor.save(2)
        actor.publish(2)
    with started(tiny_random_model, resume=True, load=str(tmp_path), **flags) as (actor, start_id):
        assert start_id == 3
        assert actor.backend.reference is not None
        assert all(torch.equal(value, followed[name]) for name, value in weights(actor.backend.reference).items())
        policy = weights(actor.backend.model)
        assert any(not torch.equal(value, policy[name]) for name, value in followed.items())


def test_moments_are_forgotten_before_each_rollout(tiny_random_model: Path) -> None:
    steps = {}
    for reset in (False, True):
        with started(tiny_random_model, reset_optimizer_states=reset) as (actor, _):
            for rollout_id in range(2):
                actor.train(rollout_id, shard(actor, seed=rollout_id))
            steps[reset] = {int(state["step"]) for state in actor.backend.optimizer.state.values()}
    assert steps == {False: {2}, True: {1}}


def test_entropies_dumps_and_traces(tiny_random_model: Path, tmp_path: Path) -> None:
    flags = {
        "use_rollout_entropy": True,
        "save_debug_train_data": str(tmp_path / "train" / "{rollout_id}_{rank}.pt"),
        "use_pytorch_profiler": True,
        "profile_step_start": 4,
        "profile_step_end": 5,
        "profile_target": "train_log_probs",
        "run_dir": str(tmp_path),
    }
    with started(tiny_random_model, **flags) as (actor, _):
        metrics = actor.train(4, shard(actor)) or {}
        actor.train(5, shard(actor))
    dump = torch.load(tmp_path / "train" / "4_0.pt", weights_only=False)
    assert [len(values) for values in dump["entropy"]] == dump["response_lengths"]
    assert all((values > 0).all() for values in dump["entropy"])
    assert len(dump["advantages"]) == len(dump["tokens"]) == 3
    masked = [(values * mask).sum() for values, mask in zip(dump["entropy"], dump["loss_masks"], strict=True)]
    assert metrics["rollout/entropy"] == pytest.approx(float(sum(masked) / sum(m.sum() for m in dump["loss_masks"])))
    (trace,) = (tmp_path / "profile").iterdir()
    assert trace.name == "train_log_probs_rollout4_rank0.json"
    assert json.loads(trace.read_text())["traceEvents"]


def test_deterministic_kernels(tiny_random_model: Path) -> None:
    try:
        with started(tiny_random_model, deterministic_mode=True) as (actor, _):
            assert torch.are_deterministic_algorithms_enabled()
            actor.train(0, shard(actor))
    finally:
        torch.use_deterministic_algorithms(False)
