"""What a layer keeps under gradient checkpointing: the same gradients bit for bit, and which kernels run again."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.library import _scoped_library
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import CheckpointPolicy

from groundwork.exceptions import ConfigError
from lab.testkit.trainer import trainer_args
from slime.backends.fsdp_utils import model as model_module
from slime.backends.fsdp_utils.layers import ATTENTION_KERNELS, _policy, attention_operators
from slime.backends.trainer.micro_batch import build
from tests.helpers.tiny_models import qwen3_moe

LENGTHS = [13, 5, 22]
CPU = torch.device("cpu")


class Kernels(TorchDispatchMode):
    """Count calls of attention and of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name == "_scaled_dot_product_flash_attention_for_cpu":
            self.calls["attention"] += 1
        elif name in ("mm", "addmm"):
            self.calls["products"] += 1
        return func(*args, **(kwargs or {}))


def step(
    model: Path, monkeypatch: pytest.MonkeyPatch, **changes: Any
) -> tuple[Counter[str], dict[str, Tensor], Tensor]:
    """Return what runs in one forward and backward pass, the gradients, and the log probabilities."""
    monkeypatch.setattr(model_module.dist, "get_world_size", lambda *_: 1)
    policy = model_module.build_policy(trainer_args(model, **changes), str(model), device=CPU)
    tokens = [[(7 * place + 3) % 600 for place in range(length)] for length in LENGTHS]
    batch = build(tokens, [length // 2 for length in LENGTHS], packed=True, device=CPU)
    kernels = Kernels()
    with kernels:
        log_probs, _ = policy(batch, temperature=1.0, chunk_size=7)
        log_probs.sum().backward()
    gradients = {name: parameter.grad for name, parameter in policy.named_parameters() if parameter.grad is not None}
    return kernels.calls, gradients, log_probs.detach()


CHECKED = {"gradient_checkpointing": True}
WAYS = {
    "checkpointing": CHECKED,
    "attention kept": CHECKED | {"kept_attention_layers": 2},
    "one unchecked": CHECKED | {"unchecked_layers": 1},
    "one of each": CHECKED | {"kept_attention_layers": 1, "unchecked_layers": 1},
    "all unchecked": CHECKED | {"unchecked_layers": 2},
}


@pytest.mark.parametrize("lora", [False, True])
def test_gradients_are_the_same_bits_and_only_what_was_not_kept_runs_again(
    tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch, lora: bool
) -> None:
    plain, expected, log_probs = step(tiny_random_model, monkeypatch, use_lora=lora)
    assert plain["attention"] == 2 * len(LENGTHS)  # two layers
    again = {}
    for name, flags in WAYS.items():
        calls, gradients, found = step(tiny_random_model, monkeypatch, use_lora=lora, **flags)
        assert torch.equal(found, log_probs), name
        assert gradients.keys() == expected.keys(), name
        assert all(torch.equal(gradients[key], value) for key, value in expected.items()), name
        again[name] = (calls["attention"] - plain["attention"], calls["products"] - plain["products"])
    linear = (3 if lora else 1) * 7 - 1  # a layer's products in a forward pass; nobody needs the last one's result
    more = (
        6 if lora else 0
    )  # transformers lets a frozen embedding pass gradients on, so q, k and v compute their input's
    assert again == {
        "checkpointing": (2 * len(LENGTHS), 2 * linear + more),
        "attention kept": (0, 2 * linear + more),
        "one unchecked": (len(LENGTHS), linear + more),
        "one of each": (0, linear + more),
        "all unchecked": (0, more),
    }


def test_the_last_layers_are_unchecked(tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module.dist, "get_world_size", lambda *_: 1)
    args = trainer_args(tiny_random_model, **CHECKED, unchecked_layers=1)
    policy = model_module.build_policy(args, str(tiny_random_model), device=CPU)
    assert [layer.gradient_checkpointing for layer in policy.hf.base_model.layers] == [True, False]


def test_the_kept_operators_are_those_that_exist_when_the_model_is_built() -> None:
    before = attention_operators()
    assert torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default in before
    assert {operator.name().split(".")[0] for operator in before} <= set(ATTENTION_KERNELS)
    assert _policy(before, None, torch.ops.aten.mm.default) == CheckpointPolicy.PREFER_RECOMPUTE
    with _scoped_library("flash_attn", "FRAGMENT") as package:
        package.define("_flash_attn_varlen_forward(Tensor q) -> Tensor")
        operator = torch.ops.flash_attn._flash_attn_varlen_forward.default
        assert operator not in before
        assert _policy(attention_operators(), None, operator) == CheckpointPolicy.MUST_SAVE


def test_experts_train_with_kept_attention(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = qwen3_moe(tmp_path / "moe")
    _, expected, _ = step(model, monkeypatch)
    _, gradients, _ = step(model, monkeypatch, **WAYS["attention kept"])
    assert all(torch.equal(gradients[key], value) for key, value in expected.items())


def test_more_layers_than_there_are_is_an_error(tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"--unchecked-layers 1 and --kept-attention-layers 2 .* 2 layers; lower them"
    ):
        step(tiny_random_model, monkeypatch, **CHECKED, unchecked_layers=1, kept_attention_layers=2)
