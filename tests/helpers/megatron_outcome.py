"""What training with Megatron gave, and whether two runs gave the same; for comparing devices and kinds of layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit import trainer
from tests.helpers import megatron_ranks

ROLLOUTS = [0, 1]
CPU = {"loss_type": "sft_loss", "adam_eps": 1e-4, "train_dtype": "float32"}
"""The run that `tests/integration/test_megatron_parity.py` holds to float64."""


def outcome(model: Path, folder: Path, ranks: int, changes: dict[str, Any]) -> dict[str, Any]:
    """Train two rollouts and return what became of it."""
    folder.mkdir(exist_ok=True)
    file = folder / "out.pt"
    plan = {"changes": changes | {"save": str(folder / "save")}, "rollouts": ROLLOUTS}
    trainer.on_ranks(ranks, megatron_ranks.run_actors, [plan], str(model), str(file))
    return torch.load(file, weights_only=False, map_location="cpu")[0]


def check_same(found: dict[str, Any], expected: dict[str, Any], tolerance: float) -> float:
    """Compare losses, norms and every weight; return the largest difference of a weight."""
    for one, other in zip(found["metrics"], expected["metrics"], strict=True):
        assert one["train/loss"] == pytest.approx(other["train/loss"], rel=tolerance)
        assert one["train/grad_norm"] == pytest.approx(other["train/grad_norm"], rel=10 * tolerance)
    assert set(found["after"]) == set(expected["after"])
    worst = 0.0
    for name, value in expected["after"].items():
        one, other = found["after"][name].float(), value.float()
        assert torch.allclose(one, other, rtol=tolerance, atol=tolerance), name
        worst = max(worst, float((one - other).abs().max()))
    assert any(not torch.equal(found["after"][name], value) for name, value in found["before"].items())
    return worst
