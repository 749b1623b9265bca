"""The trainer on CUDA: the same gradients as the float64 reference, packed, padded, with LoRA and with a custom loss."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.helpers import trainer, trainer_ranks
from tests.helpers.gradient_cases import CASES, check

TOLERANCE = 1e-4


def ranks_to_try() -> list[int]:
    return [1, 2] if torch.cuda.device_count() >= 2 else [1]


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_the_reference(tmp_path: Path, tiny_random_model: Path, name: str) -> None:
    case = CASES[name] | {"device": "cuda"}
    for ranks in ranks_to_try():
        file = tmp_path / f"{ranks}.pt"
        trainer.on_ranks(ranks, trainer_ranks.gradients_of_cases, [case], str(tiny_random_model), str(file))
        outcome = torch.load(file, weights_only=False, map_location="cpu")[0]
        check(tiny_random_model, name, outcome, TOLERANCE)
