"""PPO's critic: values, losses and gradients are those of float64 on one and two ranks; it learns, saves and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from groundwork.network import find_available_port
from lab.testkit import trainer
from slime.exceptions import CheckpointError
from tests.helpers import trainer_ranks
from tests.helpers.ppo_ranks import close, equal, ppo_rollout
from tests.helpers.reference_loss import reference, reference_critic
from tests.helpers.tolerance import MODEL, assert_near

CHANGES: dict[str, Any] = {
    "advantage_estimator": "ppo",
    "gamma": 0.9,
    "lambd": 0.8,
    "kl_coef": 0.1,
    "use_rollout_logprobs": True,
}


@pytest.mark.parametrize("ranks", [1, 2])
def test_critic_and_policy_have_the_gradients_of_float64(tmp_path: Path, tiny_random_model: Path, ranks: int) -> None:
    out, port = tmp_path / "out.pt", find_available_port()
    arguments = (port, CHANGES, str(tiny_random_model), str(out))
    if ranks == 1:
        trainer_ranks.ppo_gradients(0, 1, *arguments)
    else:
        trainer.on_ranks(ranks, trainer_ranks.ppo_gradients, *arguments)
    metrics, head, critic_gradients, policy_gradients = torch.load(out, weights_only=False)
    args, data = trainer.trainer_args(tiny_random_model, **CHANGES), trainer.train_data()
    values, critic = reference_critic(args, data, head)
    assert_near(metrics["train/value_loss"], critic["losses"][0], roundings=MODEL)
    masks = [torch.tensor(mask) for mask in data["loss_masks"]]
    mean = sum(float((v * m).sum()) for v, m in zip(values, masks, strict=True)) / sum(int(m.sum()) for m in masks)
    assert_near(metrics["rollout/values"], mean, roundings=MODEL)
    close(critic_gradients, critic["gradients"])
    loss, expected = reference(args, data | {"values": values})
    assert_near(metrics["train/loss"], loss, roundings=MODEL)
    close({name.removeprefix("hf."): value for name, value in policy_gradients.items()}, expected)
    assert metrics["train/critic-lr-pg_0"] == args.lr
    assert metrics["train/critic-grad_norm"] > 0


def run(model: Path, rollouts: list[int], critic_only: int = 0, **changes: Any) -> dict[str, Any]:
    """Train the policy and its critic on one batch again and again, with a checkpoint after each; one rank, this process."""
    args = trainer.trainer_args(model, **{**CHANGES, "critic_lr": 3e-3, **changes})
    actor, start = trainer_ranks.start_actor(args, 0, 1, find_available_port())
    try:
        critic = trainer_ranks.start_critic(args, 0, 1, start)
        result: dict[str, Any] = {"start": start, "before": trainer_ranks.whole(actor.backend.model), "metrics": []}
        for rollout in rollouts:
            shard = trainer.shards(args, trainer.train_data(), 1)[0]
            result["metrics"].append(ppo_rollout(actor, critic, rollout, shard, rollout >= critic_only))
            if args.save:
                critic.save(rollout)
                actor.save(rollout)
                actor.publish(rollout)
                critic.publish(rollout)
        result |= {
            "policy": trainer_ranks.whole(actor.backend.model),
            "critic": trainer_ranks.whole(critic.backend.model),
        }
        return result | {"version": int(actor.versions()[1])}
    finally:
        actor.shutdown()


def test_it_learns_and_a_resumed_run_is_the_uninterrupted_one(tmp_path: Path, tiny_random_model: Path) -> None:
    elsewhere, save = ({"save": str(tmp_path / name), "critic_save": str(tmp_path / name / "critic")} for name in "ab")
    whole = run(tiny_random_model, list(range(6)), critic_only=1, **elsewhere)
    losses = [metrics["train/value_loss"] for metrics in whole["metrics"]]
    assert losses[-1] < 0.3 * losses[0], losses
    assert "train/loss" not in whole["metrics"][0]
    assert "train/loss" in whole["metrics"][1]
    assert whole["metrics"][-1]["train/critic-lr-pg_0"] == 3e-3
    assert whole["version"] == 1

    first = run(tiny_random_model, [0, 1, 2, 3], critic_only=1, **save)
    # a crash between the critic's checkpoint and the policy's leaves a newer one of the critic
    (tmp_path / "b/critic/latest_checkpointed_iteration.txt").write_text("9")
    second = run(tiny_random_model, [4, 5], **save, resume=True)
    assert second["start"] == 4
    assert equal(first["policy"], second["before"])
    assert equal(whole["policy"], second["policy"])
    assert equal(whole["critic"], second["critic"])
    with pytest.raises(CheckpointError, match="set --critic-save to its folder"):
        run(tiny_random_model, [6], resume=True, save=save["save"], critic_save=str(tmp_path))


def test_only_the_critic_learns_at_first(tiny_random_model: Path) -> None:
    found = run(tiny_random_model, [0, 1], critic_only=2)
    assert equal(found["before"], found["policy"])
    assert found["version"] == 0
    assert found["metrics"][0]["rollout/values"] == 0.0
    assert found["metrics"][1]["rollout/values"] != 0.0


def test_a_critic_starts_from_another_critics_checkpoint(tmp_path: Path, tiny_random_model: Path) -> None:
    save = {"save": str(tmp_path / "a"), "critic_save": str(tmp_path / "a/critic")}
    first = run(tiny_random_model, [0, 1], **save)
    run(
        tiny_random_model,
        [2],
        critic_load=save["critic_save"],
        save=str(tmp_path / "b"),
        critic_save=save["critic_save"],
    )
    second = run(tiny_random_model, [], critic_load=f"{save['critic_save']}/iter_0000002")  # as --load names it
    assert equal(first["critic"], second["critic"])
    assert second["start"] == 0
    newest = run(tiny_random_model, [], critic_load=save["critic_save"])
    assert not equal(first["critic"], newest["critic"])
