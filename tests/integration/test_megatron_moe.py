"""Qwen3-MoE with Megatron on the CPU is the Hugging Face model: experts chosen alike, gradients and three optimizer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.helpers import megatron_ranks, tiny_models, trainer
from tests.helpers.reference_steps import sft_steps

TOLERANCE = 1e-5
STEPS = {"loss_type": "sft_loss", "adam_eps": 1e-4}


def by_expert(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Under the names of the checkpoint: transformers holds all experts of a layer in two tensors."""
    found = {}
    for name, value in weights.items():
        layer, experts, kind = name.partition(".mlp.experts.")
        if not experts:
            found[name] = value
            continue
        for number, expert in enumerate(value):
            parts = expert.chunk(2) if kind == "gate_up_proj" else (expert,)
            kinds = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
            for one, part in zip(kinds, parts, strict=True):
                found[f"{layer}.mlp.experts.{number}.{one}.weight"] = part
    return found


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.qwen3_moe(tmp_path_factory.mktemp("moe") / "model")


@pytest.fixture(scope="module")
def result(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("moe") / "result.pt"
    trainer.on_ranks(1, megatron_ranks.parity, [(str(model), STEPS)], str(file))
    return torch.load(file, weights_only=False)[0]


def test_three_steps_are_those_of_hugging_face(model: Path, result: dict[str, Any]) -> None:
    expected = sft_steps(trainer.trainer_args(model, **STEPS), trainer.train_data(), 3)
    for index, values in enumerate(expected["log_probs"]):
        assert torch.allclose(result["log_probs"][index].double(), values, rtol=0, atol=TOLERANCE)
    assert [step["loss"] for step in result["metrics"]] == pytest.approx(expected["losses"], rel=TOLERANCE)
    for kind in ("gradients", "after"):
        whole = by_expert(expected[kind])
        assert set(result[kind]) == set(whole)
        worst = max(float((result[kind][name].double() - value).abs().max()) for name, value in whole.items())
        assert worst <= TOLERANCE, kind


def test_weights_come_back_as_they_went_in(model: Path, result: dict[str, Any]) -> None:
    original = load_file(model / "model.safetensors")
    assert set(result["start"]) == set(original)
    assert all(torch.equal(result["start"][name], value) for name, value in original.items())
