"""LoRA as one autograd function against PEFT's modules and against float64, and which layers it takes."""

from __future__ import annotations

import copy
import logging
from collections import Counter
from typing import Any

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from peft.tuners.lora.layer import Linear
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from lab.testkit.trainer import trainer_args
from slime.backends.fsdp_utils.fused_lora import FusedLinear, LoraProduct, fuse_adapters
from slime.backends.fsdp_utils.model import adapters_off, add_adapters

IN, OUT, RANK = 24, 40, 4


class TwoLayers(nn.Module):
    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.q_proj = nn.Linear(IN, OUT, bias=bias)
        self.o_proj = nn.Linear(OUT, IN, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.o_proj(self.q_proj(x).tanh())


def with_adapters(dtype: torch.dtype = torch.float32, model: nn.Module | None = None, **config: Any) -> nn.Module:
    torch.manual_seed(0)
    model = (model or TwoLayers()).to(dtype)
    model.requires_grad_(False)
    values = {"r": RANK, "lora_alpha": 9, "target_modules": ["q_proj", "o_proj"], **config}
    inject_adapter_in_model(LoraConfig(**values), model)
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            parameter.data = torch.randn_like(parameter) * 0.1
    return model


def outcome(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """The output, and the gradients of its weighted sum for ``x`` and every adapter."""
    x = x.clone().requires_grad_()
    out = model(x)
    weights = torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out).to(out.dtype)
    (out * weights).sum().backward()
    assert x.grad is not None
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "x": x.grad, **gradients}


def rows(dtype: torch.dtype) -> Tensor:
    return torch.randn(2, 7, IN, generator=torch.Generator().manual_seed(1)).to(dtype)


@pytest.mark.parametrize("rslora", [False, True])
def test_values_and_gradients_are_pefts(rslora: bool) -> None:
    peft = with_adapters(torch.float64, use_rslora=rslora)
    fused = copy.deepcopy(peft)
    assert fuse_adapters(fused) == Counter(fused=2)
    assert all(type(layer) is FusedLinear for layer in fused.children())
    expected, found = outcome(peft, rows(torch.float64)), outcome(fused, rows(torch.float64))
    assert found.keys() == expected.keys()
    assert len(found) == 6
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=1e-12, atol=1e-12, msg=name)


def test_in_bfloat16_it_is_nearer_to_float64_than_peft() -> None:
    peft = with_adapters(torch.bfloat16, lora_alpha=64)
    exact, fused = copy.deepcopy(peft).double(), copy.deepcopy(peft)
    fuse_adapters(fused)
    x = rows(torch.bfloat16)
    expected, of_peft, of_fused = outcome(exact, x.double()), outcome(peft, x), outcome(fused, x)
    for name, value in expected.items():
        scale = value.abs().mean()
        assert (of_fused[name] - value).abs().mean() < 0.02 * scale, name
    errors = [float((found["out"] - expected["out"]).abs().mean()) for found in (of_fused, of_peft)]
    assert errors[0] < errors[1]


class Operations(TorchDispatchMode):
    """Count the operations that compute."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        free = {"t", "view", "_unsafe_view", "detach", "alias", "transpose", "permute"}
        if func.overloadpacket.__name__ not in free:
            self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def test_it_takes_three_products_forward_and_five_backward() -> None:
    weight, a, b = torch.randn(OUT, IN), torch.randn(RANK, IN), torch.randn(OUT, RANK)
    leaves = [tensor.requires_grad_() for tensor in (torch.randn(6, IN), a, b)]
    with Operations() as forward:
        out = LoraProduct.apply(leaves[0], weight, None, *leaves[1:], 2.0)
    upstream = torch.randn_like(out)
    with Operations() as backward:
        torch.autograd.grad(out, leaves, upstream)
    assert forward.names == Counter(mm=2, addmm_=1)
    assert backward.names == Counter(mm=2, addmm=2, addmm_=1)


def test_without_adapters_it_is_the_base_model() -> None:
    model = with_adapters()
    fuse_adapters(model)
    x, base = rows(torch.float32), {name: layer.get_base_layer() for name, layer in model.named_children()}
    with adapters_off(model):
        assert torch.equal(model(x), base["o_proj"](base["q_proj"](x).tanh()))
    assert not torch.equal(model(x), base["o_proj"](base["q_proj"](x).tanh()))


@pytest.mark.parametrize(
    ("config", "reason"),
    [({"lora_dropout": 0.1}, "dropout"), ({"use_dora": True}, "Dora"), ({"lora_bias": True}, "a bias in the adapter")],
)
def test_what_it_cannot_compute_stays_pefts(
    config: dict[str, Any], reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    model = with_adapters(**config)
    before = outcome(copy.deepcopy(model).eval(), rows(torch.float32))
    with caplog.at_level(logging.INFO):
        assert fuse_adapters(model) == Counter({reason: 2})
    assert caplog.messages == [f"0 adapters are one function each; PEFT computes 2 with {reason}"]
    assert all(type(layer) is Linear for layer in model.children())
    after = outcome(model.eval(), rows(torch.float32))
    assert all(torch.equal(after[name], value) for name, value in before.items())


def test_a_base_that_is_not_a_plain_linear_layer_stays_pefts() -> None:
    class Packed(nn.Linear):
        """Stands for a quantized layer, whose weight has another layout."""

    model = TwoLayers()
    model.o_proj = Packed(OUT, IN, bias=False)
    assert fuse_adapters(with_adapters(model=model)) == Counter({"fused": 1, "a Packed as base": 1})


@pytest.mark.parametrize(
    ("kernel", "device", "kind"),
    [(None, "cpu", Linear), (None, "cuda", FusedLinear), ("peft", "cuda", Linear), ("fused", "cpu", FusedLinear)],
)
def test_the_default_is_fused_on_cuda_only(kernel: str | None, device: str, kind: type) -> None:
    model = TwoLayers()
    args = trainer_args("none", use_lora=True, lora_kernel=kernel, device=device)
    add_adapters(args.changed(lora_target_modules=["q_proj", "o_proj"]), model)
    assert [type(layer) for layer in model.children()] == [kind, kind]
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == [f"{layer}.lora_{side}.default.weight" for layer in ("q_proj", "o_proj") for side in "AB"]
