"""Training data made by a plugin: what the trainer needs is there, what is wrong is named."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from slime.args import Arguments
from slime.contract import CLAUSES
from slime.exceptions import PluginError
from slime.rollout.custom_conversion import ConversionError, convert_with
from slime.rollout.train_data import split_by_dp
from slime.utils.types import Sample

GOOD: dict[str, Any] = {
    "tokens": [[1, 2, 3], [4, 5]],
    "response_lengths": [2, 1],
    "rewards": [1.0, -1.0],
    "loss_masks": [[1, 1], [1]],
}


def test_the_lengths_that_shards_need_are_added() -> None:
    data = convert_with(lambda args, samples: GOOD, Arguments(), [Sample(), Sample()])
    args = Arguments(global_batch_size=2, use_dynamic_batch_size=False, micro_batch_size=1, context_parallel_size=1)
    shards = split_by_dp(data, 2, args)
    assert sorted(length for shard in shards for length in shard["total_lengths"]) == [2, 3]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"loss_masks": None}, "no loss_masks"),
        ({"rewards": [1.0]}, r"2 tokens entries and \{'rewards': 1\}"),
        ({"tokens": [], "response_lengths": [], "rewards": [], "loss_masks": []}, "no samples to train on"),
        ({"loss_masks": [[1, 1], [1, 1]]}, "entry 1: loss_mask has 2 entries, the response 1 tokens"),
        ({"response_lengths": [4, 1], "loss_masks": [[1] * 4, [1]]}, "entry 0: response_length 4 does not fit 3"),
        (
            {"response_lengths": [2, 2], "loss_masks": [[1, 1], [1, 1]]},
            "entry 1: all 2 tokens are response; add a prompt token",
        ),
        ({"rewards": [float("nan"), 0.0]}, "entry 0: the reward nan is not a finite number"),
        ({"rewards": [0.0, None]}, "entry 1: the reward None is not a finite number"),
        ({"rollout_log_probs": [[-1.0, -1.0]]}, "rollout_log_probs has 1 entries for 2 samples"),
        ({"rollout_log_probs": [[-1.0, -1.0], None]}, "entry 1: rollout_log_probs is missing"),
        ({"rollout_log_probs": [[-1.0], [-1.0]]}, "entry 0: rollout_log_probs has 1 entries, the response 2"),
        ({"teacher_topk_indices": [None, [[1, 2], [1, 2]]]}, "entry 1: teacher_topk_indices has 2 entries"),
        ({"rewards": 1.0}, "rewards is 1.0, not a list with an entry per sample"),
        ({"tokens": [[1, 2, 3], None]}, "entry 1: tokens is None, not a list with an entry per token"),
        ({"loss_masks": [None, [1]]}, "entry 0: loss_masks is None, not a list with an entry per token"),
        ({"rollout_log_probs": [0.5, 0.5]}, "entry 0: rollout_log_probs is 0.5, not a list"),
        ({"response_lengths": [2, None]}, "entry 1: response_length None is not a whole number"),
        ({"rollout_ids": [0, 0, 1]}, "rollout_ids has 3 entries for 2 samples"),
        ({"rollout_routed_experts": [[0], [0]]}, "rollout_routed_experts needs --use-rollout-routing-replay"),
    ],
)
def test_what_does_not_fit_is_named_with_its_clause(changes: dict[str, Any], says: str) -> None:
    data = {key: value for key, value in (GOOD | changes).items() if value is not None}

    def my_conversion(args: Arguments, samples: list[Sample]) -> dict[str, Any]:
        return data

    with pytest.raises(PluginError, match=f"my_conversion.*{says}") as raised:
        convert_with(my_conversion, Arguments(), [Sample(), Sample()])
    assert isinstance(raised.value, ConversionError)
    assert str(raised.value).startswith(f"clause {raised.value.clause}: ")
    assert raised.value.clause in CLAUSES
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_arrays_become_the_lists_that_are_dealt_to_the_ranks() -> None:
    data = {
        "tokens": [np.array([1, 2, 3]), torch.tensor([4, 5])],
        "response_lengths": np.array([2, 1]),
        "rewards": torch.tensor([1.0, -1.0]),
        "loss_masks": ([1, 1], [1]),
        "rollout_log_probs": [np.array([-0.5, -1.0]), [-2.0]],
        "teacher_log_probs": (None, [-1.0]),
        "note": "as it is",
    }
    found = convert_with(lambda args, samples: data, Arguments(), [Sample(), Sample()])
    assert found == {
        **GOOD,
        "rollout_log_probs": [[-0.5, -1.0], [-2.0]],
        "teacher_log_probs": [None, [-1.0]],
        "note": "as it is",
        "total_lengths": [3, 2],
    }


def test_a_list_is_no_training_data() -> None:
    with pytest.raises(PluginError, match="dict of lists, not list"):
        convert_with(lambda args, samples: [], Arguments(), [])  # type: ignore[arg-type, return-value]
