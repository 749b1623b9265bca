"""Policy-gradient arithmetic against hand-computed values and float64."""

from __future__ import annotations

import math

import pytest
import torch

from slime.utils.ppo_utils import (
    bounded_ratio,
    compute_approx_kl,
    compute_log_probs,
    compute_policy_loss,
    log_probs_and_entropy,
)
from tests.helpers.tolerance import assert_near


def test_clipped_surrogate_by_hand() -> None:
    # ratios 1, 2, 0.5, 2, 0.5 with advantages +1, +1, +1, -1, -1 and bounds [0.8, 1.28]
    ppo_kl = torch.tensor([0.0, -math.log(2), math.log(2), -math.log(2), math.log(2)])
    advantages = torch.tensor([1.0, 1.0, 1.0, -1.0, -1.0])
    losses, clipped = compute_policy_loss(ppo_kl, advantages, 0.2, 0.28)
    assert_near(losses, torch.tensor([-1.0, -1.28, -0.5, 2.0, 0.8]))
    assert clipped.tolist() == [0.0, 1.0, 0.0, 0.0, 1.0]


def test_dual_clip_bounds_only_negative_advantages() -> None:
    ppo_kl = torch.tensor([-math.log(10.0), -math.log(10.0)])
    losses, _ = compute_policy_loss(ppo_kl, torch.tensor([-1.0, 1.0]), 0.2, 0.2, eps_clip_c=3.0)
    assert_near(losses, torch.tensor([3.0, -1.2]))
    with pytest.raises(ValueError, match="above 1"):
        compute_policy_loss(ppo_kl, torch.tensor([-1.0, 1.0]), 0.2, 0.2, eps_clip_c=0.5)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("k1", 0.5), ("k2", 0.125), ("k3", math.exp(-0.5) - 0.5), ("low_var_kl", math.exp(-0.5) - 0.5)],
)
def test_kl_estimators_by_hand(kind: str, expected: float) -> None:
    estimate = compute_approx_kl(torch.tensor([-1.0]), torch.tensor([-1.5]), kind)
    assert_near(estimate, [expected])
    weighted = compute_approx_kl(torch.tensor([-1.0]), torch.tensor([-1.5]), kind, importance_ratio=torch.tensor([2.0]))
    assert_near(weighted, [2 * expected])


def test_low_variance_kl_is_bounded_and_k3_is_not() -> None:
    new, base = torch.tensor([-20.0]), torch.tensor([-1.0])
    assert float(compute_approx_kl(new, base, "low_var_kl")) == 10.0
    assert float(compute_approx_kl(new, base, "k3")) > 1e6


def test_unknown_kl_estimator_names_the_flag() -> None:
    with pytest.raises(ValueError, match="--kl-loss-type"):
        compute_approx_kl(torch.zeros(1), torch.zeros(1), "k9")


def test_log_probs_leave_the_logits_alone_and_match_float64() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0)) * 5
    tokens = torch.arange(6)
    before = logits.clone()
    log_probs, entropy = log_probs_and_entropy(logits, tokens, with_entropy=True)
    assert torch.equal(logits, before)
    table = torch.log_softmax(logits.double(), dim=-1)
    largest = float(logits.abs().max())
    assert_near(log_probs, table[torch.arange(6), tokens], magnitude=largest)
    assert entropy is not None
    assert_near(entropy, -(table.exp() * table).sum(-1), magnitude=largest)
    assert torch.equal(compute_log_probs(logits, tokens, None), log_probs.unsqueeze(-1))


@pytest.mark.parametrize("advantage", [1.0, -1.0])
@pytest.mark.parametrize("distance", [19.0, 89.0, 1e4, math.inf])
def test_no_ratio_is_too_large_or_small_for_a_gradient(distance: float, advantage: float) -> None:
    distances = torch.tensor([distance, -distance], requires_grad=True)
    losses, _ = compute_policy_loss(distances, torch.full((2,), advantage), 0.2, 0.28, eps_clip_c=3.0)
    kinds = ("k3", "low_var_kl")
    base = torch.zeros(2)
    estimates = [compute_approx_kl(distances.clamp(-1e30, 1e30), base, kind) for kind in kinds]
    weighted = compute_approx_kl(base, base, "k3", importance_ratio=bounded_ratio(distances))
    total = losses.sum() + weighted.sum() + sum((estimate * 0.0).sum() for estimate in estimates)
    total.backward()
    assert distances.grad is not None
    assert bool(distances.grad.isfinite().all())


def test_a_ratio_is_exact_inside_its_bound_and_flat_beyond() -> None:
    differences = torch.tensor([-30.0, -5.0, 0.0, 5.0, 30.0], requires_grad=True)
    ratios = bounded_ratio(differences)
    assert_near(ratios, differences.detach().double().clamp(-20.0, 20.0).exp())
    ratios.sum().backward()
    assert differences.grad is not None
    assert (differences.grad == 0.0).tolist() == [True, False, False, False, True]
