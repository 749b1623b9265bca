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
TP2 = {"tensor_model_parallel_size": 2, "sequence_parallel": True}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one rank": (1, {}),
    "tp 2": (2, TP2),
    "ep 2 over data": (2, {"expert_model_parallel_size": 2}),
    "ep 2 over tensor": (2, TP2 | {"expert_model_parallel_size": 2, "expert_tensor_parallel_size": 1}),
    "ep 2 over context": (2, {"context_parallel_size": 2, "expert_model_parallel_size": 2}),
    "tp 2, ep 2": (4, TP2 | {"expert_model_parallel_size": 2}),
    "pp 2, ep 2": (4, {"pipeline_model_parallel_size": 2, "expert_model_parallel_size": 2}),
}


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
def expected(model: Path) -> dict[str, Any]:
    """Float64 results."""
    return sft_steps(trainer.trainer_args(model, **STEPS), trainer.train_data(), 3)


@pytest.fixture(scope="module")
def results(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What each layout gives, from one start of processes per number of ranks."""
    out, found = tmp_path_factory.mktemp("moe"), {}
    for ranks in sorted({size for size, _ in LAYOUTS.values()}):
        names = [name for name, (size, _) in LAYOUTS.items() if size == ranks]
        cases = [(str(model), STEPS | LAYOUTS[name][1]) for name in names]
        trainer.on_ranks(ranks, megatron_ranks.parity, cases, str(out / f"{ranks}.pt"))
        found |= dict(zip(names, torch.load(out / f"{ranks}.pt", weights_only=False), strict=True))
    return found


@pytest.mark.parametrize("layout", LAYOUTS)
def test_three_steps_are_those_of_hugging_face(expected, results, layout: str) -> None:
    result = results[layout]
    for index, values in enumerate(expected["log_probs"]):
        assert torch.allclose(result["log_probs"][index].double(), values, rtol=0, atol=TOLERANCE)
    assert [step["loss"] for step in result["metrics"]] == pytest.approx(expected["losses"], rel=TOLERANCE)
    norm = torch.stack([value.norm() for value in expected["gradients"].values()]).norm()
    assert result["metrics"][0]["grad_norm"] == pytest.approx(float(norm), rel=TOLERANCE)
    for kind in ("gradients", "after"):
        whole = by_expert(expected[kind])
        assert set(result[kind]) == set(whole)
        worst = max(float((result[kind][name].double() - value).abs().max()) for name, value in whole.items())
        assert worst <= TOLERANCE, kind


@pytest.mark.parametrize("layout", LAYOUTS)
def test_weights_come_back_as_they_went_in(model: Path, results, layout: str) -> None:
    original = load_file(model / "model.safetensors")
    returned = results[layout]["start"]
    assert set(returned) == set(original)
    assert all(torch.equal(returned[name], value) for name, value in original.items())


@pytest.fixture(scope="module")
def resumed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, Any]]]:
    """A run of two rollouts at EP 2, and its second rollout again from the checkpoint after the first, on other layouts."""
    folder = tmp_path_factory.mktemp("moe-checkpoint")
    whole = {"save": str(folder / "whole"), "save_hf": str(folder / "hf-{rollout_id}"), "expert_model_parallel_size": 2}
    plans = {"whole": {"changes": STEPS | whole, "rollouts": [0, 1]}}
    for name in ("ep 2 over data", "ep 2 over tensor", "tp 2"):
        again = {"load": str(folder / "whole" / "iter_0000001"), "save": str(folder / name.replace(" ", "-"))}
        plans[name] = {"changes": STEPS | LAYOUTS[name][1] | again, "rollouts": [1]}
    file = folder / "out.pt"
    trainer.on_ranks(2, megatron_ranks.run_actors, list(plans.values()), str(model), str(file))
    return folder, dict(zip(plans, torch.load(file, weights_only=False), strict=True))


@pytest.mark.parametrize("layout", ["ep 2 over data", "ep 2 over tensor", "tp 2"])
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
