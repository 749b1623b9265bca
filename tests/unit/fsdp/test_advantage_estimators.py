"""Estimators and whitening against plain Python floats, and on numbers small enough for a hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.testkit.trainer import trainer_args
from slime.algorithms.advantages import compute_advantages, discounted_returns, on_one_rank, whiten
from tests.helpers.reference_policy import reference_advantages
from tests.helpers.tolerance import assert_near


def rollout(lengths: list[int], seed: int = 0) -> dict[str, Any]:
    rng = random.Random(seed)

    def streams() -> list[torch.Tensor]:
        return [torch.tensor([-rng.uniform(0.1, 4.0) for _ in range(length)]) for length in lengths]

    return {
        "rewards": [rng.choice([-1.0, 0.0, 1.0]) for _ in lengths],
        "response_lengths": lengths,
        "loss_masks": [torch.tensor([rng.randint(0, 1) for _ in range(length)]) for length in lengths],
        "log_probs": streams(),
        "ref_log_probs": streams(),
    }


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.0])
@pytest.mark.parametrize("kl_coef", [0.0, 0.3])
def test_reinforce_plus_plus_is_that_of_plain_floats(gamma: float, kl_coef: float) -> None:
    data = rollout([7, 1, 13, 4])
    args = trainer_args(
        "", advantage_estimator="reinforce_plus_plus", gamma=gamma, kl_coef=kl_coef, normalize_advantages=True
    )
    advantages, returns = compute_advantages(args, data)
    reference = data | {"teacher_log_probs": [None] * 4}
    for whitening, found in ((True, advantages), (False, returns)):
        args.normalize_advantages = whitening
        assert_near(found, reference_advantages(args, reference))


def test_reinforce_plus_plus_by_hand() -> None:
    data = {
        "rewards": [1.0, -2.0],
        "response_lengths": [3, 2],
        "loss_masks": [torch.tensor([1, 1, 0]), torch.tensor([0, 0])],
        "log_probs": [torch.zeros(3), torch.zeros(2)],
    }
    args = trainer_args("", advantage_estimator="reinforce_plus_plus", gamma=0.5)
    # the reward is on the last token that counts; a sample without one has none
    assert [values.tolist() for values in compute_advantages(args, data)[1]] == [[0.5, 1.0, 0.0], [0.0, 0.0]]


def test_the_group_baseline_by_hand() -> None:
    data = {
        "rewards": [0.5, -0.5],
        "response_lengths": [2, 1],
        "loss_masks": [torch.tensor([1, 0]), torch.tensor([1])],
        "log_probs": [torch.tensor([-1.0, -1.0]), torch.tensor([-1.0])],
        "ref_log_probs": [torch.tensor([-1.5, -9.0]), torch.tensor([-0.5])],
    }
    args = trainer_args(
        "",
        advantage_estimator="reinforce_plus_plus_baseline",
        kl_coef=0.2,
        kl_loss_type="k1",
        normalize_advantages=True,
    )
    advantages, returns = compute_advantages(args, data)
    assert [values.tolist() for values in returns] == [pytest.approx([0.4, 0.5]), pytest.approx([-0.4])]
    # two tokens count: 0.4 and -0.4, mean 0, variance 0.32
    assert_near(advantages[0], [0.4 / math.sqrt(0.32), 0.5 / math.sqrt(0.32)])
    assert_near(data["kl"][0], [0.5, 0.0])


@settings(deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=0, max_size=70), st.floats(0, 1))
def test_discounted_returns_are_those_of_a_loop(rewards: list[float], gamma: float) -> None:
    after, expected = 0.0, []
    for reward in reversed(rewards):
        after = reward + gamma * after
        expected.insert(0, after)
    found = discounted_returns(torch.tensor(rewards, dtype=torch.float64), gamma).tolist()
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.lists(st.tuples(st.floats(-5, 5), st.booleans()), max_size=6), min_size=2, max_size=6))
def test_whitening_does_not_depend_on_who_holds_which_sample(samples: list[list[tuple[float, bool]]]) -> None:
    values = [torch.tensor([value for value, _ in sample]) for sample in samples]
    masks = [torch.tensor([int(kept) for _, kept in sample]) for sample in samples]
    together = whiten(values, masks, on_one_rank)
    for rank in (0, 1):
        found = whiten(values[rank::2], masks[rank::2], _second_rank(values[1 - rank :: 2], masks[1 - rank :: 2]))
        assert_near(found, together[rank::2])


def _second_rank(values: list[torch.Tensor], masks: list[torch.Tensor]):
    """A sum over two ranks, where the other one holds ``values``: first (total, count), then squares around the mean."""
    flat = torch.cat([*values, torch.zeros(0)]).double()
    mask = torch.cat([*masks, torch.zeros(0, dtype=torch.int64)]).double()

    seen: list[torch.Tensor] = []

    def add(mine: torch.Tensor) -> torch.Tensor:
        if not seen:
            seen.append(mine + torch.stack([(flat * mask).sum(), mask.sum()]))
            return seen[0]
        mean = seen[0][0] / seen[0][1].clamp_min(1.0)
        return mine + ((flat - mean).square() * mask).sum()

    return add


def test_whitening_by_hand() -> None:
    values, masks = [torch.tensor([1.0, 9.0]), torch.tensor([3.0])], [torch.tensor([1, 0]), torch.tensor([1])]
    found = whiten(values, masks, on_one_rank)
    # mean 2, variance 2
    assert [row.tolist() for row in found] == [pytest.approx([-(0.5**0.5), 7 / 2**0.5]), pytest.approx([0.5**0.5])]


def test_equal_advantages_become_zero_and_a_single_token_keeps_its_own() -> None:
    equal = whiten([torch.full((3,), 0.7), torch.full((2,), 0.7)], [torch.ones(3), torch.ones(2)], on_one_rank)
    assert all(value == 0.0 for row in equal for value in row.tolist())
    alone = whiten([torch.tensor([0.7, 0.1])], [torch.tensor([1, 0])], on_one_rank)
    assert_near(alone[0], [0.7, 0.1])
    assert_near(whiten([torch.tensor([0.7])], [torch.tensor([0])], on_one_rank)[0], [0.7])


@pytest.mark.parametrize("name", ["gspo", "cispo"])
def test_gspo_and_cispo_have_the_advantages_of_grpo(name: str) -> None:
    data = rollout([2, 3])
    data["rewards"] = [0.5, -1.0]
    found = compute_advantages(trainer_args("", advantage_estimator=name), data)[0]
    assert [values.tolist() for values in found] == [[0.5] * 2, [-1.0] * 3]


def halves(args: Any, data: dict[str, Any]) -> None:
    """A plugin: half the reward, less the KL, which is there."""
    data["advantages"] = [0.5 * r - kl for r, kl in zip(data["rewards"], data["kl"], strict=True)]
    data["returns"] = [[2.0] * length for length in data["response_lengths"]]


def forgets(args: Any, data: dict[str, Any]) -> None:
    """A plugin that sets one of the two."""
    data["advantages"] = [torch.zeros(length) for length in data["response_lengths"]]


def shortens(args: Any, data: dict[str, Any]) -> None:
    """A plugin with values for one token too few."""
    data["advantages"] = data["returns"] = [torch.zeros(length - 1) for length in data["response_lengths"]]


def test_a_custom_advantage_function_sets_both_streams() -> None:
    data = rollout([2, 3])
    data["rewards"] = [1.0, -1.0]
    args = trainer_args("", custom_advantage_function_path=f"{__name__}.halves")
    advantages, returns = compute_advantages(args, data)
    assert [values.tolist() for values in advantages] == [[0.5] * 2, [-0.5] * 3]
    assert [values.tolist() for values in returns] == [[2.0] * 2, [2.0] * 3]


@pytest.mark.parametrize(
    ("name", "message"),
    [("forgets", r'forgets did not set rollout\["returns"\]'), ("shortens", r"\[1, 2\], but the responses have")],
)
def test_a_wrong_custom_advantage_function_is_named(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        compute_advantages(trainer_args("", custom_advantage_function_path=f"{__name__}.{name}"), rollout([2, 3]))
