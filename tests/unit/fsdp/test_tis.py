"""Truncated importance weights: numbers against float64, and what they are for: an estimate from other weights' samples."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch

from lab.testkit.trainer import trainer_args
from slime.algorithms.losses import LOSSES
from slime.algorithms.losses.policy_loss import truncated_weights
from slime.algorithms.losses.reduce import make_reducer
from tests.helpers.tolerance import assert_near

LOW, HIGH = 0.5, 2.0


def stale_reply(rng: random.Random, versions: int, length: int) -> tuple[list[float], list[float]]:
    """Logprobs of one reply under the trainer's weights, and under the engine's, which changed ``versions`` times."""
    trainer = [-rng.uniform(0.01, 6.0) for _ in range(length)]
    spans = sorted(rng.sample(range(1, length), versions - 1))
    drifts = [rng.gauss(0.0, 1.0) for _ in range(versions)]
    return trainer, [value + drifts[sum(n >= edge for edge in spans)] for n, value in enumerate(trainer)]


def expected_loss(trainer: list[float], engine: list[float], new: list[float], advantage: float, mask: list[int]):
    """The masked mean of ``w_t * PPO_clip`` and the three metrics, by plain Python floats (64 bits)."""
    total = ratios = distances = clipped = 0.0
    for old, rollout, value, kept in zip(trainer, engine, new, mask, strict=True):
        ratio = math.exp(old - rollout)
        weight = min(max(ratio, LOW), HIGH)
        step = math.exp(value - old)
        surrogate = -min(step * advantage, min(max(step, 0.8), 1.28) * advantage)
        total += kept * weight * surrogate
        ratios += kept * ratio
        distances += kept * abs(ratio - 1.0)
        clipped += kept * (weight != ratio)
    count = sum(mask)
    return total / count, ratios / count, distances / count, clipped / count


@pytest.mark.parametrize("versions", [1, 2, 5])
def test_stale_replies_give_the_float64_loss(versions: int) -> None:
    rng = random.Random(versions)
    replies = [stale_reply(rng, versions, 24) for _ in range(6)]
    moved = [[value + rng.gauss(0.0, 0.2) for value in trainer] for trainer, _ in replies]
    masks = [[1] + [rng.randint(0, 1) for _ in range(23)] for _ in replies]
    advantages = [rng.choice([-1.0, 1.0]) for _ in replies]
    args = trainer_args("", use_tis=True, tis_clip=HIGH, tis_clip_low=LOW)
    reduce = make_reducer(False, [24] * 6, [torch.tensor(mask) for mask in masks])
    batch = {
        "loss_masks": [torch.tensor(mask) for mask in masks],
        "log_probs": [torch.tensor(trainer) for trainer, _ in replies],
        "rollout_log_probs": [torch.tensor(engine) for _, engine in replies],
        "advantages": [torch.full((24,), value) for value in advantages],
    }
    new = [torch.tensor(values, requires_grad=True) for values in moved]
    loss, metrics = LOSSES["policy_loss"](args, batch, new, [torch.zeros(24)] * 6, reduce)
    wanted = [
        expected_loss(trainer, engine, value, advantage, mask)
        for (trainer, engine), value, advantage, mask in zip(replies, moved, advantages, masks, strict=True)
    ]
    for found, index in ((loss, 0), (metrics["tis"], 1), (metrics["tis_abs"], 2), (metrics["tis_clipfrac"], 3)):
        assert_near(found, sum(values[index] for values in wanted))


def test_weights_turn_samples_of_old_weights_into_an_estimate_for_the_new() -> None:
    generator = np.random.default_rng(0)
    behaviour, policy, reward = (generator.dirichlet(np.ones(8)), generator.dirichlet(np.ones(8)), generator.random(8))
    old, rollout = torch.tensor(np.log(policy)), torch.tensor(np.log(behaviour))
    free, ratio = truncated_weights(old, rollout, 0.0, math.inf)
    assert float((torch.tensor(behaviour * reward) * free).sum()) == pytest.approx(float(policy @ reward), abs=1e-12)
    bounded, _ = truncated_weights(old, rollout, 0.0, HIGH)
    assert float(ratio.max()) > HIGH
    lost = float((torch.tensor(behaviour * reward) * (ratio - HIGH).clamp(min=0.0)).sum())
    estimate = float((torch.tensor(behaviour * reward) * bounded).sum())
    assert estimate == pytest.approx(float(policy @ reward) - lost, abs=1e-12)


def test_weights_carry_no_gradient() -> None:
    old = torch.tensor([-1.0, -2.0], requires_grad=True)
    weights, ratio = truncated_weights(old, torch.tensor([-1.5, -0.5]), LOW, HIGH)
    assert not weights.requires_grad
    assert not ratio.requires_grad
    assert_near(weights, [math.exp(0.5), LOW])
