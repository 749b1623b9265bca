"""Tests of layers by Liger-Kernel, which `tests/integration/test_liger_layers.py` runs in Triton's interpreter.

They are apart because they need another environment: `TRITON_INTERPRET=1`, and Triton and Liger in reach of the imports. Float32 layers
are held to transformers' own layers in float64.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.helpers.interpreted_triton import reciprocal_root  # isort: skip
from liger_kernel.ops import rms_norm
from liger_kernel.transformers import LigerRMSNorm, LigerSwiGLUMLP
from transformers.models.qwen2 import modeling_qwen2
from transformers.models.qwen3 import modeling_qwen3

from lab.testkit.trainer import trainer_args
from slime.arguments.memory_budget.trainer import saved_bytes
from slime.backends.fsdp_utils import model as model_module
from slime.backends.trainer.micro_batch import build
from tests.helpers.tiny_models import qwen2
from tests.unit.fsdp.test_memory_of_a_step import SHAPE, arguments, kept_bytes

CPU = torch.device("cpu")
NEAR = 2e-5
"""Of float32 values, relative to the largest."""
PATCHED = ("apply_rotary_pos_emb", "Qwen3RMSNorm", "Qwen3MLP", "Qwen2RMSNorm", "Qwen2MLP")


@pytest.fixture(autouse=True)
def transformers_as_it_is(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Undo what Liger changes in transformers."""
    monkeypatch.setattr(rms_norm, "rsqrt", reciprocal_root)
    monkeypatch.setattr(model_module.dist, "get_world_size", lambda *_: 1)
    kept = {
        (module, name): getattr(module, name)
        for module in (modeling_qwen2, modeling_qwen3)
        for name in PATCHED
        if hasattr(module, name)
    }
    yield
    for (module, name), value in kept.items():
        setattr(module, name, value)


def policy_of(model: Path, **changes: Any) -> Any:
    torch.manual_seed(0)
    policy = model_module.build_policy(trainer_args(model, **changes), str(model), device=CPU)
    for name, parameter in policy.named_parameters():
        if ".lora_" in name:
            values = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name)))
            parameter.data = values * 0.1
    return policy


def outcome(policy: Any) -> dict[str, Tensor]:
    """Log probabilities, and the gradients of their weighted sum."""
    batch = build([[7, 8, 9, 10, 4], [3] * 11, [5, 600]], [2, 5, 1], packed=True, device=CPU)
    log_probs, _ = policy(batch, temperature=1.0, chunk_size=7)
    (log_probs * torch.linspace(-1, 1, len(log_probs), dtype=log_probs.dtype)).sum().backward()
    return {"log_probs": log_probs.detach()} | {
        name: parameter.grad for name, parameter in policy.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"use_lora": True, "lora_kernel": "fused"},
        {"gradient_checkpointing": True, "kept_attention_layers": 1, "unchecked_layers": 1},
    ],
    ids=["whole weights", "LoRA", "checkpointing"],
)
@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
def test_values_and_gradients_are_those_of_float64(
    tiny_random_model: Path, tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    model = tiny_random_model if kind == "qwen3" else qwen2(tmp_path / "qwen2")
    expected = outcome(policy_of(model, **changes).double())
    policy = policy_of(model, **changes, fused_kernels="liger")
    layer = policy.hf.base_model.layers[0]
    norms = [layer.input_layernorm, layer.post_attention_layernorm, policy.hf.base_model.norm]
    norms += [layer.self_attn.q_norm, layer.self_attn.k_norm] if kind == "qwen3" else []
    assert all(type(norm) is LigerRMSNorm for norm in norms)
    assert type(layer.mlp) is LigerSwiGLUMLP
    found = outcome(policy)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name] - value).abs().max() <= NEAR * value.abs().max(), name


@pytest.mark.parametrize("adapters", [False, True])
@pytest.mark.parametrize("qk_norm", [True, False])
def test_a_layer_saves_what_the_memory_plan_counts(adapters: bool, qk_norm: bool) -> None:
    shape = replace(SHAPE, vocab=64, qk_norm=qk_norm, hidden=64, ffn=192, heads=4, kv_heads=2, head_dim=16)
    model_module.use_liger("qwen3" if qk_norm else "qwen2")
    rank, tokens = (4 if adapters else 0), 32
    found = {layers: kept_bytes(replace(shape, layers=layers), tokens, rank) for layers in (1, 3)}
    of_layer = (found[3] - found[1]) / 2 / tokens
    assert saved_bytes(shape, lora_rank=rank, liger=True) == pytest.approx(of_layer, rel=0.01)
    assert saved_bytes(shape, lora_rank=rank, liger=True) < 0.8 * saved_bytes(shape, lora_rank=rank)
    assert arguments().fused_kernels == "none"
