"""Megatron on the CPU over gloo is the Hugging Face model: log probabilities, gradients and three optimizer steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit import trainer
from tests.helpers import megatron_ranks, tiny_models
from tests.helpers.reference_steps import by_expert, sft_steps
from tests.helpers.tolerance import LOGITS, MODEL, assert_near

# Where Adam divides by a gradient near zero, rounding of float32 would be seen as a step; a larger epsilon bounds that.
STEPS = {"loss_type": "sft_loss", "adam_eps": 1e-4}
RECOMPUTED = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
TP2 = {"tensor_model_parallel_size": 2}
PP2 = {"pipeline_model_parallel_size": 2}
CP2 = {"context_parallel_size": 2}
EP2 = {"expert_model_parallel_size": 2}
SEQUENCE = {"sequence_parallel": True}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tp 1": (1, {}),
    "recomputed": (1, RECOMPUTED),
    "tp 2": (2, TP2),
    "tp 2, sequence parallel": (2, TP2 | SEQUENCE),
    "dp 2": (2, {}),
    "pp 2": (2, PP2),
    "cp 2": (2, CP2),
}
# Of one model, the one whose vocabulary does not divide: four processes on two cores are slow.
MORE_LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "cp 2, recomputed": (2, CP2 | RECOMPUTED),
    "cp 2, tp 2": (4, CP2 | TP2 | SEQUENCE),
    "cp 2, pp 2": (4, CP2 | PP2),
    "cp 2, dp 2": (4, CP2),
    "cp 4": (4, {"context_parallel_size": 4}),
}
EXPERT_LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tp 1": LAYOUTS["tp 1"],
    "tp 2, sequence parallel": LAYOUTS["tp 2, sequence parallel"],
    "ep 2 over data": (2, EP2),
    "ep 2 over tensor": (2, EP2 | TP2 | SEQUENCE | {"expert_tensor_parallel_size": 1}),
    "ep 2 over context": (2, EP2 | CP2),
    "ep 2, tp 2": (4, EP2 | TP2 | SEQUENCE),
    "ep 2, pp 2": (4, EP2 | PP2),
}
MODELS = ("qwen3", "qwen3, tied", "qwen2")
CASES = {
    **{(layout, name): LAYOUTS[layout] for layout in LAYOUTS for name in MODELS},
    **{(layout, "qwen3, tied"): MORE_LAYOUTS[layout] for layout in MORE_LAYOUTS},
    **{(layout, "qwen3_moe"): EXPERT_LAYOUTS[layout] for layout in EXPERT_LAYOUTS},
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory, tiny_random_model: Path, tiny_random_tied_model: Path):
    """The folders by name; an odd vocabulary in the second makes two ranks pad it."""
    folder = tmp_path_factory.mktemp("megatron")
    return {
        "qwen3": tiny_random_model,
        "qwen3, tied": tiny_models.without_last_row(tiny_random_tied_model, folder / "tied"),
        "qwen2": tiny_models.qwen2(folder / "qwen2"),
        "qwen3_moe": tiny_models.qwen3_moe(folder / "moe"),
    }


@pytest.fixture(scope="module")
def results(models, tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], dict[str, Any]]:
    """What each layout gives for each model, from one start of processes per number of ranks."""
    out = tmp_path_factory.mktemp("parity")
    found = {}
    for ranks in (1, 2, 4):
        keys = [key for key, (size, _) in CASES.items() if size == ranks]
        cases = [(str(models[key[1]]), STEPS | CASES[key][1]) for key in keys]
        trainer.on_ranks(ranks, megatron_ranks.parity, cases, str(out / f"{ranks}.pt"))
        found |= dict(zip(keys, torch.load(out / f"{ranks}.pt", weights_only=False), strict=True))
    return found


@pytest.fixture(scope="module")
def references(models) -> dict[str, dict[str, Any]]:
    """Float64 results by model."""
    return {
        name: sft_steps(trainer.trainer_args(path, **STEPS), trainer.train_data(), 3) for name, path in models.items()
    }


@pytest.mark.parametrize(("layout", "name"), CASES)
def test_three_steps_are_those_of_hugging_face(results, references, models, layout: str, name: str) -> None:
    found, expected = results[layout, name], references[name]
    for index, values in enumerate(expected["log_probs"]):
        assert_near(found["log_probs"][index], values, roundings=MODEL, magnitude=LOGITS, what="log_probs")
    assert_near([step["loss"] for step in found["metrics"]], expected["losses"], roundings=MODEL, what="losses")
    norm = torch.stack([value.norm() for value in expected["gradients"].values()]).norm()
    assert_near(found["metrics"][0]["grad_norm"], norm, roundings=MODEL, what="norm")
    for kind in ("gradients", "after"):
        assert_near(found[kind], by_expert(expected[kind]), roundings=MODEL, what=kind)


@pytest.mark.parametrize(("layout", "name"), CASES)
def test_weights_come_back_as_they_went_in(results, models, layout: str, name: str) -> None:
    from safetensors.torch import load_file

    original = load_file(models[name] / "model.safetensors")
    returned = results[layout, name]["start"]
    assert set(returned) == set(original)
    assert all(torch.equal(returned[key], value) for key, value in original.items())
