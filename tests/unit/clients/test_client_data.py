"""What a program sends for a step: how many of its targets have a loss."""

from __future__ import annotations

import numpy as np
import pytest

from slime.clients.models import Datum, complete, tokens_with_loss

IDS = np.arange(4)
HALF = np.array([0.0, 0.5, 0.0, -1.0], np.float32)


@pytest.mark.parametrize(
    ("loss", "inputs", "count"),
    [
        ("cross_entropy", {}, 4),
        ("cross_entropy", {"weights": HALF}, 2),
        ("importance_sampling", {"logprobs": HALF, "advantages": HALF}, 2),
        ("ppo", {"logprobs": HALF, "advantages": np.ones(4, np.float32)}, 4),
        ("cispo", {"logprobs": HALF, "advantages": np.zeros(4, np.float32)}, 0),
        ("dro", {"logprobs": HALF, "advantages": np.zeros(4, np.float32)}, 4),
    ],
)
def test_a_target_has_a_loss_if_its_weight_or_advantage_is_not_0(
    loss: str, inputs: dict[str, np.ndarray], count: int
) -> None:
    data = complete([Datum(IDS, IDS, inputs)] * 2, loss, {}, vocabulary=9, context=9)
    assert tokens_with_loss(loss, data) == 2 * count
