"""What a decoder layer keeps for the backward pass.

With gradient checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016) a layer keeps its input and
computes the rest again. Two exceptions trade memory for time, and neither changes a bit of a gradient:

- A layer that *keeps attention* also stores the attention kernel's output and sums, so only the other operations run again.
- An *unchecked* layer keeps everything.

The last layers are unchecked, because the backward pass frees them first; the layers before those keep attention. The memory
plan counts both (`slime.arguments.memory_budget`).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from groundwork.exceptions import ConfigError
from slime.args import Arguments

ATTENTION_KERNELS = (
    "aten::_scaled_dot_product_flash_attention_for_cpu",
    "aten::_scaled_dot_product_flash_attention",
    "aten::_scaled_dot_product_cudnn_attention",
    "aten::_scaled_dot_product_efficient_attention",
    "torch_attn::_varlen_attn",
    "flash_attn::_flash_attn_varlen_forward",
)
"""Operators whose outputs are kept. A kernel that torch does not know as an operator runs again: FlashAttention 4's."""


def set_checkpointing(args: Arguments, hf: Any, layers: list[nn.Module]) -> None:
    """Set gradient checkpointing of ``layers``, the decoder layers of the transformers model ``hf``.

    Raises:
        ConfigError: the flags count more layers than there are, or the layers do not support it.
    """
    hf.gradient_checkpointing_enable({"use_reentrant": False})
    unchecked, keeping = args.unchecked_layers or 0, args.kept_attention_layers or 0
    if unchecked + keeping > len(layers):
        raise ConfigError(
            f"--unchecked-layers {unchecked} and --kept-attention-layers {keeping} are more than the model's "
            f"{len(layers)} layers; lower them"
        )
    layer: Any
    for layer in layers[len(layers) - unchecked :]:
        layer.gradient_checkpointing = False
    for layer in layers[len(layers) - unchecked - keeping : len(layers) - unchecked]:
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, context_fn=_keep_attention)


def _keep_attention() -> tuple[Any, Any]:
    """Return the contexts of a forward pass and of its repetition."""
    return create_selective_checkpoint_contexts(_policy)


def _policy(_context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    kept = isinstance(operator, torch._ops.OpOverload) and operator.name().split(".")[0] in ATTENTION_KERNELS
    return CheckpointPolicy.MUST_SAVE if kept else CheckpointPolicy.PREFER_RECOMPUTE
