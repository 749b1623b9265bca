"""What instructions/algorithms.md says about samples and groups from which there is little or nothing to learn."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lab.testkit.trainer import trainer_args
from slime.algorithms.advantages import compute_advantages
from slime.algorithms.losses import LOSSES
from slime.algorithms.losses.reduce import make_reducer
from slime.arguments.algorithm import ESTIMATORS
from slime.backends.trainer.micro_batch import RolloutShard
from slime.rollout.rewards import post_process_rewards
from slime.rollout.train_data import convert, split_by_dp
from slime.utils.types import Sample
from tests.helpers.reference_policy import random_batch
from tests.helpers.tolerance import MODEL, assert_near
from tests.unit.fsdp.test_policy_losses import CASES, cast, loss_of
from tests.unit.ray.test_trajectories import arguments, sample, steps

BY_REWARD = [name for name in ESTIMATORS if name != "on_policy_distillation"]
WHITENED = ["reinforce_plus_plus", "reinforce_plus_plus_baseline"]
LONG = 120_000
WHITENING_EPSILON = 1e-8
# What the teacher gives each token; the old policy gives 0.
TEACHER = -0.25


def advantages_of(estimator: str, samples: list[Sample], value: float = 0.0) -> list[list[float]]:
    """Advantages of ``samples``, from rewards to whitening, as the trainer has them; a critic gives each token ``value``."""
    white = estimator.startswith("reinforce")
    args = arguments(advantage_estimator=estimator, normalize_advantages=white, global_batch_size=len(samples))
    data = RolloutShard(split_by_dp(convert(args, samples), 1, args)[0])
    lengths = data.fields["response_lengths"]
    data.fields["log_probs"] = [torch.zeros(length) for length in lengths]
    if estimator == "ppo":
        data.fields["values"] = [torch.full((length,), value) for length in lengths]
    if estimator == "on_policy_distillation":
        data.fields["teacher_log_probs"] = [torch.full((length,), TEACHER) for length in lengths]
    order = sorted(range(len(samples)), key=lambda n: data.fields["sample_indices"][n])
    found = compute_advantages(args, data.fields)[0]
    return [found[n].tolist() for n in order]


def with_step(one: Sample) -> Sample:
    """The same sample, all of whose response is one step with its reward as the score."""
    one.metadata = steps([one.reward], [[0, one.response_length]])
    return one


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo", "step_wise", "ppo"])
def test_a_group_of_one_keeps_its_reward(estimator: str) -> None:
    samples = [with_step(sample(0, 0, 2, 0.5)), with_step(sample(1, 1, 1, -1.0))]
    assert advantages_of(estimator, samples) == [[0.5, 0.5], [-1.0]]


@pytest.mark.parametrize("estimator", WHITENED)
def test_groups_of_one_are_compared_over_the_batch_by_whitening(estimator: str) -> None:
    # tokens 0.5, 0.5 and -1: mean 0, variance 1.5 / 2
    found = advantages_of(estimator, [sample(0, 0, 2, 0.5), sample(1, 1, 1, -1.0)])
    assert found == [[pytest.approx(0.5 / math.sqrt(0.75))] * 2, [pytest.approx(-1 / math.sqrt(0.75))]]


def test_rewards_have_no_part_in_distillation() -> None:
    alone = [sample(0, 0, 2, 0.5), sample(1, 1, 1, -1.0)]
    constant = [sample(0, 0, 2, 1.0), sample(0, 1, 1, 1.0)]
    for samples in (alone, constant):
        assert advantages_of("on_policy_distillation", samples) == [[TEACHER, TEACHER], [TEACHER]]


@pytest.mark.parametrize("estimator", BY_REWARD)
@pytest.mark.parametrize("reward", [0.1, 1.0, 0.0])
def test_constant_rewards_teach_nothing(estimator: str, reward: float) -> None:
    samples = [with_step(sample(0, n, n + 1, reward)) for n in range(3)]
    for row in advantages_of(estimator, samples, value=reward):  # a critic that expects it
        assert_near(row, [0.0] * len(row))


def test_constant_rewards_without_normalisation_are_the_advantage() -> None:
    args = arguments(rewards_normalization=False)
    assert post_process_rewards(args, [sample(0, n, 1, 0.1) for n in range(3)])[1] == [0.1] * 3


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_an_empty_response_and_a_masked_sample_go_through_every_estimator(estimator: str) -> None:
    samples = [
        with_step(sample(0, 0, 3, 1.0)),
        with_step(sample(0, 1, 2, -1.0)),
        with_step(sample(0, 2, 0, 0.0)),
        with_step(sample(0, 3, 2, 0.0, remove_sample=True)),
    ]
    found = advantages_of(estimator, samples)
    assert [len(row) for row in found] == [3, 2, 0, 2]
    assert all(math.isfinite(value) for row in found for value in row)
    if estimator in BY_REWARD:
        assert found[0][0] > 0 > found[1][0]
    else:
        assert found == [[TEACHER] * 3, [TEACHER] * 2, [], [TEACHER] * 2]


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_batch_of_nothing_but_empty_and_masked_samples_has_finite_advantages(estimator: str) -> None:
    samples = [with_step(sample(0, 0, 0, 0.0)), with_step(sample(0, 1, 2, 0.0, remove_sample=True))]
    found = advantages_of(estimator, samples)
    assert [len(row) for row in found] == [0, 2]
    assert found[1] == ([TEACHER] * 2 if estimator == "on_policy_distillation" else [0.0, 0.0])


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_a_very_long_sample_has_the_advantages_of_a_short_one(estimator: str) -> None:
    samples = [with_step(sample(0, 0, LONG, 0.5)), with_step(sample(1, 1, 3, -1.0))]
    long, short = advantages_of(estimator, samples)
    high, low = 0.5, -1.0
    if estimator in WHITENED:
        mean = (LONG * high + 3 * low) / (LONG + 3)
        deviation = math.sqrt((LONG * (high - mean) ** 2 + 3 * (low - mean) ** 2) / (LONG + 2) + WHITENING_EPSILON)
        high, low = (high - mean) / deviation, (low - mean) / deviation
    if estimator == "on_policy_distillation":
        high = low = TEACHER
    assert_near(short, [low] * 3)
    assert_near([min(long), max(long)], [high, high], magnitude=abs(high))


def nothing(length: int) -> dict[str, Any]:
    """The streams of a sample of ``length`` tokens, all of them masked."""
    zeros = torch.full((length,), -1.0)
    names = ("log_probs", "rollout_log_probs", "ref_log_probs", "advantages")
    return {name: zeros for name in names} | {"loss_masks": torch.zeros(length, dtype=torch.int64)}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("length", [0, 6])
def test_empty_and_masked_samples_add_nothing_to_any_loss(name: str, length: int) -> None:
    args = trainer_args("", **CASES[name])
    batch, new, entropy = random_batch(3, [4, 7])
    batch = {key: cast(value) for key, value in batch.items()}
    more = {key: [*values, nothing(length)[key]] for key, values in batch.items() if key in nothing(0)}
    more |= {"response_lengths": [4, 7, length], "total_lengths": [7, 10, length + 3]}
    new = [value.float().requires_grad_() for value in new]
    extra = torch.full((length,), -3.0, requires_grad=True)
    loss, _ = loss_of(args, batch, new, cast(entropy))
    longer, _ = loss_of(args, more, [*new, extra], [*cast(entropy), torch.ones(length)])
    assert_near(longer, loss)
    for one, other in zip(torch.autograd.grad(loss, new), torch.autograd.grad(longer, [*new, extra]), strict=False):
        assert_near(other, one)
    [gradient] = torch.autograd.grad(
        loss_of(args, more, [*new, extra], [*cast(entropy), torch.ones(length)])[0], [extra]
    )
    assert not gradient.any()


@pytest.mark.parametrize("loss_type", ["policy_loss", "sft_loss"])
def test_a_batch_of_nothing_but_masked_samples_has_loss_zero_and_gradient_zero(loss_type: str) -> None:
    batch = {name: [value] for name, value in nothing(5).items()} | {"response_lengths": [5], "total_lengths": [8]}
    new = torch.full((5,), -2.0, requires_grad=True)
    args = trainer_args("", loss_type=loss_type, entropy_coef=0.1 if loss_type == "policy_loss" else 0.0)
    reduce = make_reducer(False, [5], batch["loss_masks"])
    loss, _ = LOSSES[loss_type](args, batch, [new], [torch.ones(5)], reduce)
    assert float(loss.detach()) == 0.0
    assert not torch.autograd.grad(loss, new)[0].any()


@pytest.mark.parametrize("estimator", ["grpo", "gspo", "cispo"])
def test_a_very_long_sample_weighs_as_much_as_a_short_one_in_float32(estimator: str) -> None:
    length = LONG
    args = trainer_args("", advantage_estimator=estimator)
    generator = torch.Generator().manual_seed(0)

    def stream() -> list[Tensor]:
        return [-torch.rand(n, generator=generator, dtype=torch.float64) for n in (length, 3)]

    batch = {"log_probs": stream(), "advantages": [torch.full((n,), 1.0, dtype=torch.float64) for n in (length, 3)]}
    batch |= {"loss_masks": [torch.ones(length), torch.ones(3)], "response_lengths": [length, 3]}
    batch |= {"total_lengths": [length + 1, 4]}
    new = stream()
    whole = sum(objective(estimator, now, old) for now, old in zip(new, batch["log_probs"], strict=True))
    loss, _ = loss_of(args, {key: cast(value) for key, value in batch.items()}, cast(new), cast(stream()))
    assert_near(loss, whole, roundings=MODEL)


def objective(estimator: str, new: Tensor, old: Tensor) -> float:
    """The mean loss of a sample with advantage 1, in float64."""
    ratio = torch.exp(new - old)
    if estimator == "gspo":
        ratio = torch.exp((new - old).mean())
    if estimator == "cispo":
        return float(-(ratio.clamp(0.8, 1.28) * new).mean())
    return float(-torch.minimum(ratio, ratio.clamp(0.8, 1.28)).mean())
