"""PPO's advantages and the critic's loss against plain Python floats, and on numbers small enough for a hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.testkit.trainer import shards, train_data, trainer_args
from slime.algorithms.advantages import compute_advantages, generalized_advantages
from slime.algorithms.losses.reduce import make_reducer
from slime.algorithms.losses.supervised import value_loss
from slime.backends.trainer.micro_batch import RolloutShard
from tests.helpers.reference_policy import reference_generalized_advantages, reference_value_loss
from tests.helpers.tolerance import assert_near

TOKEN = st.tuples(st.floats(-5, 5), st.floats(-5, 5), st.floats(0, 3), st.booleans())


def rollout(tokens: list[tuple[float, float, float, bool]], reward: float) -> dict[str, Any]:
    """One sample: value, old minus reference log probability, and mask of each token; a sample of nothing beside it."""
    values, differences, _, masks = zip(*tokens, strict=True) if tokens else ((), (), (), ())
    old = torch.zeros(len(tokens))
    return {
        "rewards": [reward, 5.0],
        "response_lengths": [len(tokens), 2],
        "loss_masks": [torch.tensor(masks, dtype=torch.int64), torch.zeros(2, dtype=torch.int64)],
        "log_probs": [old, torch.zeros(2)],
        "ref_log_probs": [old - torch.tensor(differences), torch.ones(2)],
        "values": [torch.tensor(values, dtype=torch.float32), torch.tensor([0.5, -0.5])],
    }


@settings(deadline=None)
@given(st.lists(TOKEN, max_size=40), st.floats(-2, 2), st.floats(0, 1), st.floats(0, 1), st.floats(0, 0.5))
def test_advantages_are_those_of_a_recursion(
    tokens: list[Any], reward: float, gamma: float, lambd: float, kl_coef: float
) -> None:
    args = trainer_args("", advantage_estimator="ppo", gamma=gamma, lambd=lambd, kl_coef=kl_coef, kl_loss_type="k1")
    data = rollout(tokens, reward)
    advantages, returns = compute_advantages(args, data)
    values = data["values"][0].tolist()
    rewards = [-kl_coef * float(kl) for kl in data["kl"][0]]
    mask = data["loss_masks"][0].tolist()
    if any(mask):
        rewards[max(t for t, kept in enumerate(mask) if kept)] += reward
    expected = reference_generalized_advantages(rewards, values, mask, gamma, lambd)
    assert_near(advantages[0], expected)
    assert_near(returns[0], [a + v for a, v in zip(expected, values, strict=True)])
    # a sample without an unmasked token has nothing to learn, whatever its reward
    assert advantages[1].tolist() == [0.0, 0.0]
    assert returns[1].tolist() == [0.5, -0.5]


def test_three_tokens_by_hand() -> None:
    rewards, values = torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.5, 0.25, 0.75])
    # deltas with gamma 0.5: 0.125 - 0.5 = -0.375, 0.375 - 0.25 = 0.125, 1 - 0.75 = 0.25; gamma lambda = 0.25
    found = generalized_advantages(rewards, values, 0.5, 0.5)
    assert_near(found, [-0.375 + 0.25 * (0.125 + 0.25 * 0.25), 0.125 + 0.25 * 0.25, 0.25])
    # lambda 1: the discounted reward less the value; lambda 0: the one-step error
    assert_near(generalized_advantages(rewards, values, 1.0, 1.0), [0.5, 0.75, 0.25])
    assert_near(generalized_advantages(rewards, values, 1.0, 0.0), [-0.25, 0.5, 0.25])


def test_tokens_that_the_policy_did_not_write_are_passed_over() -> None:
    args = trainer_args("", advantage_estimator="ppo", gamma=0.5, lambd=0.5)
    data = rollout(
        [(0.5, 0, 0, True), (9.0, 0, 0, False), (0.25, 0, 0, True), (0.75, 0, 0, True), (7.0, 0, 0, False)], 1.0
    )
    advantages, returns = compute_advantages(args, data)
    assert_near(advantages[0], [-0.328125, 0.0, 0.1875, 0.25, 0.0])
    assert_near(returns[0], [0.171875, 9.0, 0.4375, 1.0, 7.0])


@pytest.mark.parametrize("lambd", [1.0, 0.5, 0.0])
def test_a_reward_that_the_critic_expects_teaches_nothing(lambd: float) -> None:
    data = rollout([(0.7, 0, 0, True), (0.7, 0, 0, False), (0.7, 0, 0, True)], 0.7)
    advantages, returns = compute_advantages(trainer_args("", advantage_estimator="ppo", lambd=lambd), data)
    assert_near(advantages[0], [0.0] * 3)
    assert_near(returns[0], [0.7] * 3)


def test_a_group_of_one_is_compared_with_the_critic() -> None:
    data = rollout([(0.25, 0, 0, True)], -1.0)
    assert compute_advantages(trainer_args("", advantage_estimator="ppo"), data)[0][0].tolist() == [-1.25]


def test_an_empty_response_has_no_advantages_and_is_no_error() -> None:
    advantages, returns = compute_advantages(trainer_args("", advantage_estimator="ppo"), rollout([], 1.0))
    assert (advantages[0].tolist(), returns[0].tolist()) == ([], [])


def test_whitening_and_a_teacher_change_the_advantages_and_not_the_returns() -> None:
    data = rollout([(0.0, 0, 0, True), (0.5, 0, 0, True)], 1.0) | {
        "teacher_log_probs": [torch.tensor([0.0, 2.0]), None]
    }
    plain = trainer_args("", advantage_estimator="ppo")
    changed = trainer_args("", advantage_estimator="ppo", use_opd=True, normalize_advantages=True)
    advantages, returns = compute_advantages(changed, data)
    assert [row.tolist() for row in returns] == [row.tolist() for row in compute_advantages(plain, data)[1]]
    # advantages 1 and 0.5 + 2: mean 1.75, variance 2 * 0.75^2
    assert_near(advantages[0], [-math.sqrt(0.5), math.sqrt(0.5)])


def test_without_values_it_says_so() -> None:
    data = rollout([(0.0, 0, 0, True)], 1.0)
    del data["values"]
    with pytest.raises(ValueError, match="needs the critic's values"):
        compute_advantages(trainer_args("", advantage_estimator="ppo"), data)


def test_a_very_long_response_has_exact_advantages() -> None:
    length = 100_000
    rewards, values = torch.zeros(length, dtype=torch.float64), torch.linspace(-1, 1, length, dtype=torch.float64)
    rewards[-1] = 1.0
    found = generalized_advantages(rewards, values, 1.0, 1.0)
    assert_near(found, 1.0 - values, dtype=torch.float64, roundings=length)


@pytest.mark.parametrize("per_token", [False, True])
@pytest.mark.parametrize("value_clip", [0.2, 1e-3, math.inf])
def test_the_value_loss_is_that_of_float64(per_token: bool, value_clip: float) -> None:
    generator = torch.Generator().manual_seed(1)
    lengths = [5, 1, 0, 9]

    def streams(scale: float) -> list[torch.Tensor]:
        return [torch.randn(n, generator=generator, dtype=torch.float64) * scale for n in lengths]

    old, moves, returns = streams(1.0), streams(0.9), streams(1.0)
    new = [(a + b).requires_grad_() for a, b in zip(old, moves, strict=True)]
    masks = [torch.randint(0, 2, (n,), generator=generator) for n in lengths]
    expected = reference_value_loss(old, new, returns, masks, value_clip, per_token=per_token)
    gradients = torch.autograd.grad(expected, new, materialize_grads=True)
    moved = [values.detach().float().requires_grad_() for values in new]
    batch = {"values": [v.float() for v in old], "returns": [v.float() for v in returns]}
    reduce = make_reducer(per_token, lengths, masks)
    loss, metrics = value_loss(trainer_args("", value_clip=value_clip), batch, moved, reduce)
    assert_near(loss, expected)
    assert_near(torch.autograd.grad(loss, moved, materialize_grads=True), gradients)
    assert float(metrics["value_loss"]) == float(loss.detach())
    assert (float(metrics["value_clipfrac"]) > 0) == (value_clip < 1)


def test_the_value_loss_by_hand() -> None:
    # from 0 towards 1: at 0.5 the clipped value is 0.2, (0.2 - 1)^2 = 0.64 > 0.25, and there is no gradient
    batch = {"values": [torch.zeros(3)], "returns": [torch.tensor([1.0, 1.0, -1.0])]}
    new = torch.tensor([0.5, 0.1, 0.5], requires_grad=True)
    loss, metrics = value_loss(trainer_args("", value_clip=0.2), batch, [new], make_reducer(True, [3], [torch.ones(3)]))
    assert_near(loss.detach(), 0.64 + 0.81 + 2.25)
    assert float(metrics["value_clipfrac"]) == 1.0
    assert_near(torch.autograd.grad(loss, new)[0], [0.0, -1.8, 3.0])


def test_values_and_returns_find_their_samples_on_other_ranks() -> None:
    """Two ranks of a critic and three of a policy hold the same rollout in different shards."""
    args = trainer_args("")
    data = train_data(7)
    critic = [RolloutShard(shard) for shard in shards(args, data, 2)]
    for shard in critic:
        shard.set_computed("values", [torch.tensor([float(t) for t in row[-n:]]) for row, n in rows(shard)])
    parts = [shard.by_position("values") for shard in critic]
    for shard in shards(args, data, 3):
        mine = RolloutShard(shard)
        mine.set_from_positions("values", parts)
        assert [v.tolist() for v in mine.fields["values"]] == [list(map(float, row[-n:])) for row, n in rows(mine)]


def rows(shard: RolloutShard) -> Any:
    """Tokens and response length of each sample."""
    return zip(shard.tokens, shard.fields["response_lengths"], strict=True)
