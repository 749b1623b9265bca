"""Another processor's rounding, made on this one: sums and functions that IEEE 754 leaves open come out one unit different.

A processor adds the terms of a product in the order of its vector width, and its library approximates ``exp`` in its own
way. IEEE 754 fixes the last bit of neither. `OtherRounding` moves what enters a sum, or leaves a function, by one unit in
the last place, up or down by the bits of the value itself. Three properties follow:

* The same computation of the same numbers gives the same bits, so tests of equal bits remain meaningful.
* Integers and numbers of few bits stay: counts, masks, halves, ``exp(0)``, and float32 numbers in float64 add up exactly on
  every processor.
* Additions, products and roots of single numbers stay, because IEEE 754 fixes them.

bfloat16 has few bits: a float32 sum in another order rounds to another bfloat16 only near a tie. One value in eight moves.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

SUMS = {
    *("mm", "addmm", "bmm", "baddbmm", "dot", "mv", "convolution", "convolution_backward"),
    *("sum", "mean", "cumsum", "logsumexp", "var", "var_mean", "std", "linalg_vector_norm"),
    *("_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_flash_attention_for_cpu_backward"),
    *("native_layer_norm", "native_layer_norm_backward", "_fused_rms_norm", "_fused_rms_norm_backward"),
}
"""Operations that add many numbers: their first operand is moved, so that every term of the sum is."""

FUNCTIONS = {
    *("exp", "expm1", "log", "log1p", "pow", "rsqrt", "sin", "cos", "erf", "tanh", "sigmoid"),
    *("silu", "gelu", "softplus", "logsigmoid_forward", "_softmax", "_log_softmax", "logaddexp"),
    *("silu_backward", "gelu_backward", "_softmax_backward_data", "_log_softmax_backward_data"),
}
"""Operations whose library approximates: their results are moved."""

INTEGERS = {torch.float64: torch.int64, torch.float32: torch.int32, torch.bfloat16: torch.int16}
FEW_BITS = {torch.float64: 2**24 - 1, torch.float32: 2**8 - 1, torch.bfloat16: 2**3 - 1}
"""The last bits, which are 0 in a number of few bits."""
SPREAD = {torch.float64: 0x9E3779B97F4A7C15 - 2**64, torch.float32: 0x9E3779B1 - 2**32, torch.bfloat16: 0x6A35}


def move(value: torch.Tensor) -> None:
    """Move the numbers of many bits in a floating-point tensor by one unit in the last place, in its own memory."""
    bits = value.view(INTEGERS[value.dtype])
    mixed = bits * SPREAD[value.dtype]
    step = (mixed >> (8 * value.element_size() - 1)) | 1
    fixed = (value == value.round()) | ~value.isfinite() | (bits & FEW_BITS[value.dtype] == 0)
    if value.dtype == torch.bfloat16:
        fixed |= (mixed >> 9) & 7 != 0
    bits += step.masked_fill_(fixed, 0)


class OtherRounding(TorchDispatchMode):
    """Within this context torch rounds as another processor might."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func``; move the first operand of a sum, or the results of a function."""
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        if name in SUMS and movable(args[0]):
            first = args[0].clone()
            move(first)
            args = (first, *args[1:])
        result = func(*args, **kwargs)
        if name.removesuffix("_") in FUNCTIONS:
            for value in filter(movable, tree_leaves(result)):
                move(value)
        return result


def movable(value: Any) -> bool:
    """Whether `move` knows what to do with ``value``: a plain floating-point tensor with memory of its own."""
    plain = type(value) in (torch.Tensor, torch.nn.Parameter)
    return plain and value.dtype in INTEGERS and value.device.type == "cpu"
