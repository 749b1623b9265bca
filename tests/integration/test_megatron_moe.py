"""Checkpoints of a Qwen3-MoE whose experts ranks share: they go on on other ranks, and the export is what was trained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.helpers import megatron_ranks, tiny_models, trainer

TOLERANCE = 1e-5
STEPS = {"loss_type": "sft_loss", "adam_eps": 1e-4}
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
LAYOUTS = {
    "ep 2 over data": {"expert_model_parallel_size": 2},
    "ep 2 over tensor": TP2 | {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1},
    "tp 2": TP2,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.qwen3_moe(tmp_path_factory.mktemp("moe") / "model")


@pytest.fixture(scope="module")
def resumed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """A run of two rollouts at EP 2, and its second rollout again from the checkpoint after the first, on other layouts."""
    folder = tmp_path_factory.mktemp("moe-checkpoint")
    whole = {"save": str(folder / "whole"), "save_hf": str(folder / "hf-{rollout_id}"), "expert_model_parallel_size": 2}
    plans = {"whole": {"changes": STEPS | whole, "rollouts": [0, 1]}}
    for name, layout in LAYOUTS.items():
        again = {"load": str(folder / "whole" / "iter_0000001"), "save": str(folder / name.replace(" ", "-"))}
        plans[name] = {"changes": STEPS | layout | again, "rollouts": [1]}
    file = folder / "out.pt"
    trainer.on_ranks(2, megatron_ranks.run_actors, list(plans.values()), str(model), str(file))
    return folder, dict(zip(plans, torch.load(file, weights_only=False), strict=True))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_checkpoint_of_shared_experts_goes_on(resumed, layout: str) -> None:
    found, whole = resumed[1][layout], resumed[1]["whole"]
    differences = [float((found["after"][name] - value).abs().max()) for name, value in whole["after"].items()]
    assert max(differences) <= (0.0 if layout == "ep 2 over data" else TOLERANCE)
    moved = [float((found["before"][name] - value).abs().max()) for name, value in whole["after"].items()]
    assert max(moved) > 1e-4


def test_the_export_of_shared_experts_is_what_was_trained(resumed) -> None:
    folder, found = resumed
    exported = load_file(folder / "hf-1" / "model.safetensors")
    assert set(exported) == set(found["whole"]["after"])
    assert all(torch.equal(exported[name], value) for name, value in found["whole"]["after"].items())
