"""Linear layers with a LoRA adapter as one autograd function, in place of PEFT's chain of modules.

``y = x W^T + b + s (x A^T) B^T`` takes three matrix products forward and five backward. Both sums happen in the epilogue of a
product (``addmm``), so there is no elementwise kernel over the output, and the sum is rounded once instead of three times.
PEFT multiplies and adds over every output (log/gpu_kernels.md#gpu-lora has figures of an H100).

Guarantees: parameters, their names and files stay PEFT's, because only the class of a layer changes. A layer that this function
cannot compute stays PEFT's; `fuse_adapters` counts those by reason and logs them.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import torch
from peft.tuners.lora.layer import Linear, LoraLayer
from torch import Tensor, nn

from slime.utils.nf4 import Nf4Linear, whole

logger = logging.getLogger(__name__)


class LoraProduct(torch.autograd.Function):
    """Compute ``x W^T + b + s (x A^T) B^T`` for a frozen ``W`` and ``b``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float) -> Tensor:
        """Return ``[..., O]`` for ``x`` ``[..., I]``, ``weight`` ``[O, I]``, ``a`` ``[r, I]``, ``b`` ``[O, r]``, all of one dtype.

        ``weight`` may be that of an `Nf4Linear`; its values then exist only during a product.
        """
        rows = x.reshape(-1, x.size(-1))
        down = rows @ a.T
        out = nn.functional.linear(rows, _values(weight, a, b), bias)
        out.addmm_(down, b.T, alpha=scale)
        ctx.save_for_backward(rows, weight, a, b, down)
        ctx.scale = scale
        return out.view(*x.shape[:-1], -1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of ``x``, ``a`` and ``b``."""
        rows, weight, a, b, down = ctx.saved_tensors
        (upstream,) = gradients
        of_out = upstream.reshape(-1, upstream.size(-1))
        through = of_out @ b
        # beta=0 ignores the first argument, and alpha scales the product for free.
        of_b = torch.addmm(b, of_out.T, down, beta=0, alpha=ctx.scale)
        of_a = torch.addmm(a, through.T, rows, beta=0, alpha=ctx.scale)
        of_x = None
        if ctx.needs_input_grad[0]:
            of_x = of_out @ _values(weight, a, b)
            of_x.addmm_(through, a, alpha=ctx.scale)
            of_x = of_x.view(*upstream.shape[:-1], -1)
        return of_x, None, None, of_a, of_b, None


def _values(weight: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Return the weight ``[O, I]`` between the adapters ``a`` and ``b``, in their dtype."""
    return weight if weight.is_floating_point() else whole(weight, (b.size(0), a.size(1)), a.dtype)


class FusedLinear(Linear):
    """PEFT's linear layer with one active adapter, computed by `LoraProduct`."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        """Return the layer's output; without its adapter, or with it merged, as PEFT does."""
        if args or kwargs or self.disable_adapters or self.merged:
            return super().forward(x, *args, **kwargs)
        (name,) = self.active_adapters
        base: Any = self.get_base_layer()
        a, b = self.lora_A[name].weight, self.lora_B[name].weight
        return LoraProduct.apply(x, base.weight, base.bias, a.to(x.dtype), b.to(x.dtype), self.scaling[name])


def fuse_adapters(model: nn.Module) -> Counter[str]:
    """Let `LoraProduct` compute the adapters of ``model`` where it can.

    Returns:
        How many layers it computes (``fused``) and how many stay PEFT's, by reason.
    """
    counts: Counter[str] = Counter()
    module: Any
    for module in model.modules():
        if not isinstance(module, LoraLayer):
            continue
        reason = _reason_against(module)
        counts[reason or "fused"] += 1
        if reason is None:
            module.__class__ = FusedLinear
    left = ", ".join(f"{count} with {reason}" for reason, count in sorted(counts.items()) if reason != "fused")
    logger.info("%d adapters are one function each%s", counts["fused"], f"; PEFT computes {left}" if left else "")
    return counts


def _reason_against(layer: LoraLayer) -> str | None:
    """Return why `LoraProduct` cannot compute ``layer``; None if it can."""
    base = layer.get_base_layer()
    if type(layer) is not Linear or type(base) not in (nn.Linear, Nf4Linear):
        return f"a {type(base).__name__} as base"
    if base.weight.requires_grad:
        return "a base that is trained"
    if len(layer.active_adapters) != 1:
        return "several active adapters"
    (name,) = layer.active_adapters
    if not isinstance(layer.lora_dropout[name], nn.Identity):
        return "dropout"
    if name in layer.lora_variant:
        return type(layer.lora_variant[name]).__name__.removesuffix("LinearVariant")
    if layer.lora_bias[name]:
        return "a bias in the adapter"
    return "weights stored transposed" if layer.fan_in_fan_out else None
