"""Hooks around SGLang's bitsandbytes loader, in an engine's processes: the base that the trainer has, in NF4.

SGLang 0.5.23 loads NF4 checkpoints of others only, and those only on a GPU: its own quantisation names tensors that its models do not
have. Here an engine reads the run's checkpoint and quantises each linear layer with the trainer's function
(`slime.utils.nf4.quantise`), one tensor at a time. Products and adapters stay SGLang's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from slime.backends.sglang_utils.server_hooks import hook
from slime.utils.nf4 import bitsandbytes, quantise

GENERATOR = "sglang.srt.model_loader.loader.BitsAndBytesModelLoader._unquantized_generator"
RATIO = "sglang.srt.layers.quantization.bitsandbytes.calculate_quant_ratio"
PRODUCT = "sglang.srt.layers.quantization.bitsandbytes.BitsAndBytesLinearMethod._apply_4bit_weight"


def quantised_weights(
    original: Callable[..., Any], loader: Any, files: list[str], use_safetensors: bool, states: dict[str, Any]
) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a checkpoint, the linear layers' packed on the model's device; note their scales in ``states``."""
    for name, tensor in loader._hf_weight_iter(files, use_safetensors):
        if name.endswith(".weight") and any(module in name for module in loader.target_modules):
            tensor, states[name] = quantise(tensor.to(torch.get_default_device()))
        yield name, tensor


def values_per_byte(original: Callable[..., Any], dtype: torch.dtype) -> int:
    """Return 2; SGLang's own answer is right for two-byte types only."""
    return 2


def product_in_own_dtype(
    original: Callable[..., Any], method: Any, layer: Any, x: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Return ``x W^T + b`` in the dtype of ``x``, where SGLang computes in bfloat16; a CPU engine has float32."""
    from bitsandbytes.autograd._functions import matmul_4bit

    packed, states = layer.weight, layer.weight.bnb_quant_state
    places = enumerate(pairwise(layer.weight.bnb_shard_offsets.tolist()))
    out = torch.cat([matmul_4bit(x, packed[start:end].t(), states[part]) for part, (start, end) in places], dim=-1)
    return out if bias is None else out + bias


def quantise_base(*, cpu: bool) -> None:
    """Hook SGLang's loader, and on a CPU, where it computes in float32, sizes and products.

    Raises:
        ImportError: bitsandbytes is not installed.
        RuntimeError: see :func:`~slime.backends.sglang_utils.server_hooks.hook`.
    """
    bitsandbytes()
    hooks: dict[str, Callable[..., Any]] = {GENERATOR: quantised_weights}
    if cpu:
        hooks |= {RATIO: values_per_byte, PRODUCT: product_in_own_dtype}
    hook(hooks, "serve a base in NF4")
