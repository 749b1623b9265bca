"""Training data made by a plugin: what the trainer needs is there, what is wrong is named."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import pytest

from slime.exceptions import PluginError
from slime.rollout.custom_conversion import convert_with
from slime.rollout.train_data import split_by_dp
from slime.utils.types import Sample

GOOD: dict[str, Any] = {
    "tokens": [[1, 2, 3], [4, 5]],
    "response_lengths": [2, 1],
    "rewards": [1.0, -1.0],
    "loss_masks": [[1, 1], [1]],
}


def test_the_lengths_that_shards_need_are_added() -> None:
    data = convert_with(lambda args, samples: GOOD, Namespace(), [Sample(), Sample()])
    args = Namespace(global_batch_size=2, use_dynamic_batch_size=False, micro_batch_size=1)
    shards = split_by_dp(data, 2, args)
    assert sorted(length for shard in shards for length in shard["total_lengths"]) == [2, 3]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"loss_masks": None}, "no loss_masks"),
        ({"rewards": [1.0]}, r"2 tokens entries and \{'rewards': 1\}"),
        ({"loss_masks": [[1, 1], [1, 1]]}, "entry 1 has 2 tokens, response_lengths 1 and 2"),
        ({"response_lengths": [4, 1], "loss_masks": [[1] * 4, [1]]}, "entry 0 has 3 tokens"),
    ],
)
def test_what_does_not_fit_is_named(changes: dict[str, Any], says: str) -> None:
    data = {key: value for key, value in (GOOD | changes).items() if value is not None}

    def my_conversion(args: Namespace, samples: list[Sample]) -> dict[str, Any]:
        return data

    with pytest.raises(PluginError, match=f"my_conversion.*{says}"):
        convert_with(my_conversion, Namespace(), [Sample(), Sample()])


def test_a_list_is_no_training_data() -> None:
    with pytest.raises(PluginError, match="dict of lists, not list"):
        convert_with(lambda args, samples: [], Namespace(), [])  # type: ignore[arg-type, return-value]
