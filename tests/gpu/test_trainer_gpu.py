"""The trainer on CUDA: the gradients of the float64 reference for every case of the CPU tests, bfloat16 attention, offloading."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit import trainer
from tests.helpers import trainer_ranks
from tests.helpers.gradient_cases import CASES, check_case
from tests.helpers.tolerance import MODEL

CUDA_ROUNDINGS = 100 * MODEL
"""CUDA's float32 kernels approximate exponentials and roots, which counts as more roundings. The tolerance is 1e-4."""
BFLOAT16_ROUNDINGS = 10
"""Of a pass through the model: products and sums are added up in float32. The tolerance is 5e-2."""


def ranks_to_try() -> list[int]:
    return [1, 2] if torch.cuda.device_count() >= 2 else [1]


def runnable() -> list[str]:
    """The cases that the installed packages can run."""
    peft = importlib.util.find_spec("peft") is not None
    return [name for name, changes in CASES.items() if peft or not changes.get("use_lora")]


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory, tiny_random_model: Path) -> dict[int, dict[int, Any]]:
    """What every case gave, by number of ranks: all cases in one set of processes, because each that starts CUDA takes seconds."""
    folder, cases = tmp_path_factory.mktemp("gradients"), [CASES[name] | {"device": "cuda"} for name in runnable()]
    found = {}
    for ranks in ranks_to_try():
        file = folder / f"{ranks}.pt"
        trainer.on_ranks(ranks, trainer_ranks.gradients_of_cases, cases, str(tiny_random_model), str(file))
        found[ranks] = torch.load(file, weights_only=False, map_location="cpu")
    return found


@pytest.mark.parametrize("name", CASES)
def test_gradients_equal_the_reference(outcomes: dict[int, dict[int, Any]], tiny_random_model: Path, name: str) -> None:
    if name not in runnable():
        pytest.skip("needs PEFT")
    for outcome in outcomes.values():
        args = trainer.trainer_args(tiny_random_model, **CASES[name])
        check_case(args, outcome[runnable().index(name)], roundings=CUDA_ROUNDINGS)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("attention", ["sdpa", "cudnn", "varlen", "auto", "flash_attention_2", "flash_attention_4"])
def test_bfloat16_is_near_the_reference(tmp_path: Path, tiny_random_model: Path, attention: str, packed: bool) -> None:
    """Samples of a pack do not see each other with either kernel, and rounding is all that differs."""
    if attention.startswith("flash_attention"):
        module = "flash_attn.cute" if attention.endswith("4") else "flash_attn"
        pytest.importorskip(module, reason="needs the package of this kernel")
    if attention in ("cudnn", "varlen", "auto") and not packed:
        pytest.skip("a kernel of packed samples")
    case = {"train_dtype": "bfloat16", "attn_implementation": attention, "pack_sequences": packed, "device": "cuda"}
    cases = [case, case | {"use_lora": True}] if importlib.util.find_spec("peft") else [case]
    for ranks in ranks_to_try():
        file = tmp_path / f"{ranks}.pt"
        trainer.on_ranks(ranks, trainer_ranks.gradients_of_cases, cases, str(tiny_random_model), str(file))
        outcomes = torch.load(file, weights_only=False, map_location="cpu")
        for index, changes in enumerate(cases):
            check_case(
                trainer.trainer_args(tiny_random_model, **changes), outcomes[index], torch.bfloat16, BFLOAT16_ROUNDINGS
            )


def test_what_is_offloaded_lives_in_host_memory(tiny_random_model: Path) -> None:
    """Parameters, gradients and moments are on the CPU, and the steps are those of a model that stays on the GPU."""
    outcomes = []
    for offload in (False, True):
        args = trainer.trainer_args(tiny_random_model, device="cuda", fsdp_cpu_offload=offload)
        actor, _ = trainer_ranks.start_actor(args)
        try:
            for step in range(2):
                actor.train(step, trainer.shards(args, trainer.train_data(seed=step), 1)[0])
            kept = "cpu" if offload else "cuda"
            assert {parameter.device.type for parameter in actor.backend.model.parameters()} == {kept}
            assert {state["exp_avg"].device.type for state in actor.backend.optimizer.state.values()} == {kept}
            outcomes.append(trainer_ranks.full_parameters(actor))
        finally:
            actor.shutdown()
    for name, value in outcomes[0].items():
        torch.testing.assert_close(outcomes[1][name], value, atol=1e-5, rtol=1e-5)
