"""Weights in 4-bit NormalFloat, as trainer and engines hold the frozen base of a LoRA run (``--base-quantization nf4``).

NF4 (Dettmers et al., "QLoRA", 2023) replaces 64 neighbouring values of a row-major weight by the nearest of 16 numbers times the
largest magnitude of the 64: 4 bits per value and a float32 scale per block. bitsandbytes computes both directions.

Guarantee: :func:`quantise` starts from bfloat16 values in every process, so trainer and engines on one kind of device hold the same
bits. Only the linear layers of decoder layers are quantised: not the head, the embedding, norms or biases.
"""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

BLOCK = 64


@functools.cache
def bitsandbytes() -> ModuleType:
    """Return ``bitsandbytes.functional``.

    On some CPUs its import runs code from a model hub if the package ``kernels`` is there, which is therefore hidden from it.

    Raises:
        ImportError: it is not installed.
    """
    hub = sys.modules.get("kernels")
    sys.modules["kernels"] = None  # type: ignore[assignment]
    try:
        return importlib.import_module("bitsandbytes.functional")
    finally:
        del sys.modules["kernels"]
        if hub is not None:
            sys.modules["kernels"] = hub


def quantise(weight: Tensor) -> tuple[Tensor, Any]:
    """Return the packed values ``[O I / 2, 1]`` uint8 of a weight ``[O, I]``, and bitsandbytes' state with the scales."""
    values = weight.detach().to(torch.bfloat16).contiguous()
    return bitsandbytes().quantize_4bit(values, blocksize=BLOCK, quant_type="nf4")


def whole(packed: Tensor, shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Return the values of the weight of an `Nf4Linear` in ``dtype``: each product in float32, rounded once."""
    size = shape[0] * shape[1] // 2
    scales = packed[size:].view(torch.float32)
    state = bitsandbytes().QuantState(scales, shape=torch.Size(shape), dtype=dtype, blocksize=BLOCK, quant_type="nf4")
    return bitsandbytes().dequantize_4bit(packed[:size].unsqueeze(-1), state)


class _Product(torch.autograd.Function):
    """``x W^T + b`` for a frozen NF4 weight, whose values exist only during a product."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, bias: Tensor | None, shape: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(packed)
        ctx.shape = shape
        return nn.functional.linear(x, whole(packed, shape, x.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (upstream,) = gradients
        (packed,) = ctx.saved_tensors
        return upstream @ whole(packed, ctx.shape, upstream.dtype), None, None, None


class Nf4Linear(nn.Linear):
    """A frozen linear layer whose weight is one flat uint8 tensor: packed values, then the bytes of the float32 scales.

    One tensor of an integer type moves between devices and is counted like any frozen weight, and nothing casts it.
    """

    def __init__(self, linear: nn.Linear, device: torch.device) -> None:
        """Quantise ``linear`` on ``device``.

        Raises:
            ValueError: the weight has no whole number of blocks.
        """
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        if linear.weight.numel() % BLOCK:
            raise ValueError(f"NF4 needs a multiple of {BLOCK} values, but a weight has {list(linear.weight.shape)}")
        packed, state = quantise(linear.weight.to(device))
        flat = torch.cat([packed.view(-1), state.absmax.view(torch.uint8)])
        self.weight = nn.Parameter(flat, requires_grad=False)
        bias = None if linear.bias is None else nn.Parameter(linear.bias.detach().to(device), requires_grad=False)
        self.register_parameter("bias", bias)

    @property
    def shape(self) -> tuple[int, int]:
        """``(O, I)`` of the weight."""
        return self.out_features, self.in_features

    def forward(self, input: Tensor) -> Tensor:
        """Return ``[..., O]`` for ``input`` ``[..., I]``."""
        return _Product.apply(input, self.weight, self.bias, self.shape)


def quantise_layers(layers: list[nn.Module], device: torch.device) -> None:
    """Replace all linear layers within ``layers`` by `Nf4Linear` on ``device``, one at a time."""
    parents = [module for layer in layers for module in layer.modules() if type(module) is not nn.Linear]
    for parent in parents:
        for name in [name for name, child in parent.named_children() if type(child) is nn.Linear]:
            setattr(parent, name, Nf4Linear(getattr(parent, name), device))
