"""From rewards to the numbers that estimators broadcast: tables of the contract, and NumPy as the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime.args import Arguments
from slime.rollout.rewards import post_process_rewards
from slime.rollout.train_data import convert
from slime.utils.types import Sample

EPSILON = 1e-6


def sample(group: int | None, reward: Any, index: int = 0, **changes: Any) -> Sample:
    values = {"group_index": group, "index": index, "tokens": [1, 2, 3], "response_length": 2, "reward": reward}
    return Sample(**(values | changes))


def trained_on(rewards: list[tuple[int, float]], **changes: Any) -> list[float]:
    samples = [sample(group, reward, index) for index, (group, reward) in enumerate(rewards)]
    return post_process_rewards(Arguments(**changes), samples)[1]


@pytest.mark.parametrize(
    ("estimator", "flags", "expected"),
    [
        ("grpo", {"grpo_std_normalization": False}, [-1.0, 1.0, 0.0, 0.0, 7.0]),
        ("gspo", {"grpo_std_normalization": False}, [-1.0, 1.0, 0.0, 0.0, 7.0]),
        ("cispo", {"grpo_std_normalization": False}, [-1.0, 1.0, 0.0, 0.0, 7.0]),
        ("grpo", {}, [-1 / 2**0.5, 1 / 2**0.5, 0.0, 0.0, 7.0]),
        ("grpo", {"rewards_normalization": False}, [0.0, 2.0, 5.0, 5.0, 7.0]),
        ("reinforce_plus_plus_baseline", {}, [-1.0, 1.0, 0.0, 0.0, 7.0]),
        ("reinforce_plus_plus", {}, [0.0, 2.0, 5.0, 5.0, 7.0]),
        ("on_policy_distillation", {}, [0.0, 2.0, 5.0, 5.0, 7.0]),
        ("step_wise", {}, [0.0, 2.0, 5.0, 5.0, 7.0]),
    ],
)
def test_the_table_of_the_contract(estimator: str, flags: dict[str, Any], expected: list[float]) -> None:
    """A pair that differs, a pair that does not, and a group of one."""
    rewards = [(0, 0.0), (0, 2.0), (1, 5.0), (1, 5.0), (2, 7.0)]
    found = trained_on(rewards, advantage_estimator=estimator, **flags)
    assert found == pytest.approx(expected, abs=1e-5)


@given(
    st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5).map(lambda value: round(value, 3))), min_size=1, max_size=24)
)
def test_groups_of_any_size_are_those_of_numpy(rewards: list[tuple[int, float]]) -> None:
    found = trained_on(rewards, advantage_estimator="grpo")
    for group in {group for group, _ in rewards}:
        values = np.array([reward for one, reward in rewards if one == group])
        mine = [value for value, (one, _) in zip(found, rewards, strict=True) if one == group]
        expected = values if len(values) == 1 else (values - values.mean()) / (values.std(ddof=1) + EPSILON)
        assert mine == pytest.approx(expected.tolist(), abs=1e-6)


def test_samples_of_a_trajectory_share_its_reward_among_trajectories() -> None:
    pieces = [(0, 1.0), (0, 9.0), (0, 9.0), (1, 3.0)]
    samples = [sample(4, reward, index) for index, reward in pieces]
    args = Arguments(**{"dynamic_history": True, "grpo_std_normalization": False})
    raw, rewards = post_process_rewards(args, samples)
    assert raw == [1.0, 9.0, 9.0, 3.0]
    assert rewards == [-1.0, -1.0, -1.0, 1.0]


def test_rewards_may_be_dicts_and_what_is_logged_may_differ() -> None:
    samples = [sample(0, {"score": 1.0, "acc": 0}, 0, metadata={"raw_reward": 0.25}), sample(0, {"score": 3.0}, 1)]
    flags = {"reward_key": "score", "grpo_std_normalization": False, "global_batch_size": 2}
    data = convert(Arguments(**flags), samples)
    assert data["rewards"] == [-1.0, 1.0]
    assert data["raw_reward"] == [0.25, 3.0]


def halved(args: Arguments, samples: list[Sample]) -> tuple[list[float], list[float]]:
    return [one.reward for one in samples], [one.reward / 2 for one in samples]


def one_too_few(args: Arguments, samples: list[Sample]) -> tuple[list[float], list[float]]:
    return [one.reward for one in samples], [0.0]


def test_a_function_may_replace_it_all() -> None:
    samples = [sample(0, 1.0, 0), sample(0, 3.0, 1)]
    path = "custom_reward_post_process_path"
    assert post_process_rewards(Arguments(**{path: f"{__name__}.halved"}), samples) == (
        [1.0, 3.0],
        [0.5, 1.5],
    )
    with pytest.raises(ValueError, match="one_too_few returned 2 and 1 values for 2 samples"):
        post_process_rewards(Arguments(**{path: f"{__name__}.one_too_few"}), samples)
