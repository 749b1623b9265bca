"""Advantages, reducers and losses on values small enough to compute by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.testkit.trainer import trainer_args
from slime.algorithms.advantages import compute_advantages
from slime.algorithms.losses import LOSSES
from slime.algorithms.losses.custom import custom_loss
from slime.algorithms.losses.policy_loss import correct, mismatch
from slime.algorithms.losses.reduce import make_reducer, sum_of_sample_mean, token_sum
from slime.args import Arguments
from slime.backends.trainer import micro_batch
from slime.backends.trainer.metrics import mean_of_steps
from slime.backends.trainer.micro_batch import add_metrics
from slime.utils.streams import batch_keys
from tests.helpers.tolerance import assert_near


def rollout(teacher: list[Any] | None) -> dict[str, Any]:
    return {
        "rewards": [1.0, -1.0],
        "response_lengths": [2, 1],
        "loss_masks": [torch.tensor([1, 1]), torch.tensor([1])],
        "log_probs": [torch.tensor([-1.0, -2.0]), torch.tensor([-3.0])],
        "teacher_log_probs": teacher,
    }


TEACHER = [torch.tensor([-0.5, -2.5]), None]


def advantages(teacher: list[Any] | None, **changes: Any) -> list[list[float]]:
    return [values.tolist() for values in compute_advantages(trainer_args("", **changes), rollout(teacher))[0]]


def test_grpo_broadcasts_the_reward() -> None:
    assert advantages(TEACHER) == [[1.0, 1.0], [-1.0]]


def test_teacher_term_is_added_where_there_is_a_teacher() -> None:
    assert advantages(TEACHER, use_opd=True, opd_kl_coef=2.0) == [[2.0, 0.0], [-1.0]]
    assert advantages(None, use_opd=True) == [[1.0, 1.0], [-1.0]]


def test_the_clip_bounds_the_teachers_term_before_its_coefficient() -> None:
    """Finding B1: one unlikely token outweighed the reward of the whole batch."""
    far = [torch.tensor([-16.0, -1.0]), torch.tensor([-0.5])]
    assert advantages(far, use_opd=True, opd_kl_coef=0.5)[0][0] < -6.0
    assert advantages(far, use_opd=True, opd_kl_coef=0.5, opd_clip=3.0)[0][0] == 1.0 - 0.5 * 3.0
    assert advantages(far, advantage_estimator="on_policy_distillation", opd_clip=3.0)[0][0] == -3.0


def test_the_teachers_term_is_against_the_policy_that_sampled() -> None:
    """Finding B10: recomputed log probabilities added the policy's drift since the tokens were sampled."""
    data = rollout(TEACHER)
    data["rollout_log_probs"] = [values - 0.75 for values in data["log_probs"]]
    found = compute_advantages(trainer_args("", use_opd=True), data)[0]
    plain = advantages(TEACHER, use_opd=True)
    assert found[0].tolist() == pytest.approx([value + 0.75 for value in plain[0]])


def test_the_mismatch_is_between_engine_and_trainer() -> None:
    """Finding B6: with --use-rollout-logprobs the metric compared the engine's numbers with themselves."""
    engine = torch.tensor([-1.0, -2.0, -3.0])
    trainer = torch.tensor([-1.25, -2.0, -9.0])
    masks = [torch.tensor([1, 1]), torch.tensor([0])]
    reduce = make_reducer(True, [2, 1], masks)
    found = mismatch(trainer, engine, masks, reduce)
    assert float(found["train_rollout_logprob_abs_diff"]) == 0.25
    assert float(found["train_rollout_logprob_diff_max"]) == 0.25
    assert float(found["train_rollout_kl"]) == pytest.approx(math.exp(-0.25) - 1.0 + 0.25)


def test_with_the_engines_log_probs_as_old_ones_the_mismatch_is_that_of_the_new_ones() -> None:
    engine, new = torch.tensor([-1.0, -2.0]), torch.tensor([-1.5, -2.0])
    batch: Any = {"loss_masks": [torch.ones(2)], "rollout_log_probs": [engine], "log_probs": [engine]}
    reduce = make_reducer(True, [2], batch["loss_masks"])
    metrics = correct(trainer_args("", use_rollout_logprobs=True), batch, new, torch.zeros(2), reduce)[3]
    assert float(metrics["train_rollout_logprob_abs_diff"]) == 0.5


def test_a_largest_value_is_no_sum() -> None:
    sums: dict[str, torch.Tensor] = {}
    for value in (0.5, 2.0, 1.0):
        add_metrics(sums, {"loss": torch.tensor(value), "diff_max": torch.tensor(value)}, torch.device("cpu"))
    assert {name: float(total) for name, total in sums.items()} == {"loss": 3.5, "diff_max": 2.0}
    steps = [
        {"loss": 1.0, "diff_max": 1.0, "lr-pg_0": 0.0, "skipped_steps": 0.0},
        {"loss": 3.0, "diff_max": 4.0, "lr-pg_0": 0.0, "skipped_steps": 0.0},
    ]
    assert (mean_of_steps(steps)["loss"], mean_of_steps(steps)["diff_max"]) == (2.0, 4.0)


def test_a_largest_value_is_the_largest_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = [{"loss": 1.0, "diff_max": 1.0}, {"loss": 3.0, "diff_max": 4.0}, {}]
    monkeypatch.setattr(micro_batch.dist, "get_world_size", lambda group: len(ranks))
    monkeypatch.setattr(
        micro_batch.dist, "all_gather_object", lambda found, local, group: found.__setitem__(slice(None), ranks)
    )
    assert micro_batch.mean_over_ranks({}, 2) == {"loss": 2.0, "diff_max": 4.0}


def test_on_policy_distillation_needs_every_teacher() -> None:
    both = [TEACHER[0], torch.tensor([-1.0])]
    assert advantages(both, advantage_estimator="on_policy_distillation") == [[0.5, -0.5], [2.0]]
    with pytest.raises(ValueError, match=r"missing on \[1\].*--use-opd"):
        advantages(TEACHER, advantage_estimator="on_policy_distillation")
    with pytest.raises(ValueError, match="all samples"):
        advantages(None, advantage_estimator="on_policy_distillation")


def test_unknown_estimator_lists_the_known_ones() -> None:
    with pytest.raises(ValueError, match="grpo, gspo, on_policy_distillation"):
        advantages(None, advantage_estimator="magic")


def test_reducers_by_hand() -> None:
    values = torch.tensor([1.0, 3.0, 10.0, 7.0, 8.0])
    lengths, masks = [2, 1, 2], [torch.tensor([1, 1]), torch.tensor([1]), torch.tensor([0, 0])]
    assert float(sum_of_sample_mean(lengths, masks)(values)) == 12.0
    assert float(token_sum(lengths, masks)(values)) == 14.0
    with pytest.raises(ValueError, match="5 tokens"):
        token_sum(lengths, masks)(values[:4])


@given(st.lists(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), min_size=1, max_size=6), min_size=1, max_size=6))
def test_reducers_add_up_over_micro_batches(samples: list[list[tuple[float, bool]]]) -> None:
    for per_token in (False, True):

        def reduced(part: list[list[tuple[float, bool]]], per_token: bool = per_token) -> float:
            masks = [torch.tensor([int(kept) for _, kept in sample]) for sample in part]
            flat = torch.tensor([value for sample in part for value, _ in sample], dtype=torch.float64)
            return float(make_reducer(per_token, [len(sample) for sample in part], masks)(flat))

        assert reduced(samples) == pytest.approx(sum(reduced([sample]) for sample in samples), abs=1e-9)


def batch(**changes: Any) -> dict[str, Any]:
    values: dict[str, Any] = {
        "total_lengths": [3, 2],
        "response_lengths": [2, 1],
        "unconcat_tokens": [torch.tensor([5, 6, 7]), torch.tensor([8, 9])],
        "loss_masks": [torch.tensor([1, 0]), torch.tensor([1])],
        "log_probs": [torch.tensor([-1.0, -1.0]), torch.tensor([-2.0])],
        "advantages": [torch.tensor([1.0, 5.0]), torch.tensor([-1.0])],
        "rollout_log_probs": [torch.tensor([-1.0 - math.log(3), -1.0]), torch.tensor([-2.0])],
    }
    return values | changes


def run(name: str, data: dict[str, Any], **changes: Any) -> tuple[float, dict[str, float]]:
    args = trainer_args("", **changes)
    reduce = make_reducer(args.calculate_per_token_loss, data["response_lengths"], data["loss_masks"])
    new = [torch.tensor([-1.0 + math.log(2), -1.0]), torch.tensor([-2.0])]
    entropy = [torch.tensor([0.5, 9.0]), torch.tensor([1.0])]
    loss, metrics = LOSSES[name](args, data, new, entropy, reduce)
    return float(loss), {key: float(value) for key, value in metrics.items()}


def test_policy_loss_by_hand() -> None:
    loss, metrics = run("policy_loss", batch())
    assert_near(loss, -1.28 + 1.0)
    assert metrics["pg_clipfrac"] == 1.0
    assert_near(metrics["ppo_kl"], -math.log(2))
    assert_near(metrics["entropy_loss"], 1.5)
    assert_near(metrics["train_rollout_logprob_abs_diff"], math.log(3))


def test_the_clip_is_that_of_the_flags() -> None:
    assert_near(run("policy_loss", batch(), eps_clip_high=0.5)[0], -1.5 + 1.0)
    less_likely = batch(log_probs=[torch.tensor([-1.0, -1.0]), torch.tensor([-1.0])])
    assert_near(run("policy_loss", less_likely)[0], -1.28 + 0.8)
    assert_near(run("policy_loss", less_likely, eps_clip=0.4)[0], -1.28 + 0.6)


def test_terms_of_the_policy_loss_by_hand() -> None:
    assert_near(run("policy_loss", batch(), entropy_coef=0.1)[0], -0.28 - 0.15)
    loss, metrics = run("policy_loss", batch(), use_tis=True)
    assert_near(loss, -1.28 * 2.0 + 1.0)
    assert_near(metrics["tis"], 3.0 + 1.0)
    assert metrics["tis_clipfrac"] == 1.0
    reference = batch(ref_log_probs=[torch.tensor([-1.0, -1.0]), torch.tensor([-2.0])])
    loss, metrics = run("policy_loss", reference, use_kl_loss=True, kl_loss_coef=0.5, kl_loss_type="k1")
    assert_near(metrics["kl_loss"], math.log(2))
    assert_near(loss, -0.28 + 0.5 * math.log(2))


def test_truncated_weights_need_rollout_log_probs() -> None:
    with pytest.raises(ValueError, match="rollout_log_probs"):
        run("policy_loss", batch(rollout_log_probs=None), use_tis=True)


def test_sft_loss_by_hand() -> None:
    assert_near(run("sft_loss", batch())[0], 1.0 - math.log(2) + 2.0)


def test_custom_loss_gets_every_key_of_the_contract() -> None:
    seen: dict[str, Any] = {}

    def function(args: Arguments, data: dict[str, Any], logits: torch.Tensor, reduce: Any) -> Any:
        seen.update(data)
        return logits.sum() * 2, {"mine": torch.tensor(3.0)}

    loss, metrics = custom_loss(function, trainer_args(""), batch(), torch.ones(1, 5, 4), lambda x: x.sum())
    assert set(batch_keys()) <= set(seen)
    assert seen["ref_log_probs"] is None
    assert seen["tokens"].tolist() == [[5, 6, 7, 8, 9]]
    assert seen["full_loss_masks"].tolist() == [[1, 0, 0, 1, 0]]
    assert (float(loss), float(metrics["loss"]), float(metrics["mine"])) == (40.0, 40.0, 3.0)


@pytest.mark.parametrize("result", [torch.tensor(1.0), (torch.ones(2), {})])
def test_a_wrong_custom_loss_is_named(result: Any) -> None:
    def wrong(*_: Any) -> Any:
        return result

    with pytest.raises((TypeError, ValueError), match="custom loss wrong"):
        custom_loss(wrong, trainer_args(""), batch(), torch.ones(1, 5, 4), lambda x: x.sum())
