"""Megatron on CUDA: Transformer Engine's layers over NCCL, the precision-aware offloaded optimizer, experts, against the CPU's.

The CPU's run is the one that `tests/integration/test_megatron_parity.py` holds to float64; here weights are bfloat16, so the
tolerance is that of their rounding.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lab.testkit import trainer
from tests.helpers import megatron_critic, tiny_models
from tests.helpers.megatron_outcome import CPU, ROLLOUTS, check_same, outcome
from tests.helpers.needed import needs

pytestmark = needs("megatron", "transformer_engine")


TOLERANCE = 2e-2
CUDA = CPU | {"device": "cuda", "transformer_impl": "transformer_engine", "train_dtype": "bfloat16"}
OFFLOADED = {
    "use_precision_aware_optimizer": True,
    "optimizer_cpu_offload": True,
    "overlap_cpu_optimizer_d2h_h2d": True,
}
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one GPU": (1, {}),
    "recomputed": (1, {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}),
    "offloaded": (1, OFFLOADED),
    "tp 2, sequence parallel": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
    "dp 2": (2, {}),
    "pp 2": (2, {"pipeline_model_parallel_size": 2}),
    "cp 2": (2, {"context_parallel_size": 2}),
    "cp 2, tp 2": (4, {"context_parallel_size": 2, "tensor_model_parallel_size": 2, "sequence_parallel": True}),
}
EXPERTS: dict[str, tuple[int, dict[str, Any]]] = {
    "one GPU": (1, {}),
    "ep 2 over data": (2, {"expert_model_parallel_size": 2}),
    "ep 2 over context": (2, {"expert_model_parallel_size": 2, "context_parallel_size": 2}),
    "tp 2": (2, {"tensor_model_parallel_size": 2, "sequence_parallel": True}),
}


@pytest.fixture(scope="module")
def on_the_cpu(tiny_random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcome(tiny_random_model, tmp_path_factory.mktemp("cpu"), 1, CPU)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_two_rollouts_are_those_of_the_cpu(
    layout: str, on_the_cpu: dict[str, Any], tiny_random_model: Path, tmp_path: Path
) -> None:
    ranks, changes = LAYOUTS[layout]
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} CUDA devices")
    check_same(outcome(tiny_random_model, tmp_path, ranks, CUDA | changes), on_the_cpu, TOLERANCE)


@pytest.mark.parametrize("ranks", [1, 2])
def test_adapters_are_those_of_the_cpu(ranks: int, tiny_random_model: Path, tmp_path: Path) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} CUDA devices")
    lora = {"use_lora": True, "transformer_impl": "local"}
    expected = outcome(tiny_random_model, tmp_path / "cpu", 1, CPU | lora)
    changes = CUDA | lora | {"tensor_model_parallel_size": ranks, "sequence_parallel": ranks > 1}
    check_same(outcome(tiny_random_model, tmp_path / "cuda", ranks, changes), expected, TOLERANCE)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_critic_is_that_of_the_cpu(ranks: int, tiny_random_model: Path, tmp_path: Path) -> None:
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} CUDA devices")
    ppo = {"loss_type": "policy_loss", "advantage_estimator": "ppo", "critic_lr": 3e-3}
    layout = {"tensor_model_parallel_size": ranks, "sequence_parallel": ranks > 1}
    found = []
    for name, number, changes in (("cpu", 1, CPU), ("cuda", ranks, CUDA | layout)):
        save = {"save": str(tmp_path / name), "critic_save": str(tmp_path / name / "critic")}
        plan = {"changes": changes | ppo | save, "rollouts": ROLLOUTS}
        file = str(tmp_path / f"{name}.pt")
        trainer.on_ranks(number, megatron_critic.runs, [plan], str(tiny_random_model), file)
        found.append(torch.load(file, weights_only=False, map_location="cpu")[0])
    losses = [[metrics["train/value_loss"] for metrics in run["metrics"]] for run in found]
    assert losses[1] == pytest.approx(losses[0], rel=TOLERANCE)
    heads = [run["critic"]["head.weight"].float() for run in found]
    assert float((heads[1] - heads[0]).norm()) < 0.3 * float(heads[0].norm())


@pytest.mark.parametrize("layout", EXPERTS)
def test_experts_are_those_of_the_cpu(layout: str, tmp_path: Path) -> None:
    ranks, changes = EXPERTS[layout]
    if torch.cuda.device_count() < ranks:
        pytest.skip(f"needs {ranks} CUDA devices")
    model = tiny_models.qwen3_moe(tmp_path / "model")
    expected = outcome(model, tmp_path / "cpu", 1, CPU)
    check_same(outcome(model, tmp_path / "cuda", ranks, CUDA | changes), expected, TOLERANCE)
