"""What a decoder layer computes with, and what it keeps for the backward pass.

``--fused-kernels`` joins the elementwise operations of norms, rotary embedding and SwiGLU, which move most of a layer's bytes.
``liger`` replaces transformers' classes *before* a model is built, because a patched model keeps its norms on heads. ``compile``
compiles ``forward`` of each layer, so hooks of FSDP2 and checkpointing stay outside; all layers share one graph, for any number
of tokens. Both round less often than transformers does.

With gradient checkpointing (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016) a layer keeps its input and
computes the rest again. Two exceptions trade memory for time, and neither changes a bit of a gradient:

- A layer that *keeps attention* also stores the attention kernel's output and sums, so only the other operations run again.
- An *unchecked* layer keeps everything.

The last layers are unchecked, because the backward pass frees them first; the layers before those keep attention. The memory
plan counts both (`slime.arguments.memory_budget`).
"""

from __future__ import annotations

import importlib
import os
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from types import MethodType
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


LIGER_MODELS = ("qwen2", "qwen3")
"""Model types whose layers Liger's kernels compute here, each tested."""


def use_liger(model_type: str) -> None:
    """Let Liger-Kernel compute norms, rotary embedding and SwiGLU of all models of ``model_type`` that this process builds.

    Raises:
        ConfigError: another type of model, or the package is missing.
    """
    if model_type not in LIGER_MODELS:
        raise ConfigError(
            f"--fused-kernels liger is for {' and '.join(LIGER_MODELS)}, but the model is a {model_type}; use none"
        )
    os.environ["LIGER_KERNEL_IMPL_ROPE"] = "nvidia-triton"  # Liger prefers a CuTe kernel, which no test here covers
    try:
        liger = importlib.import_module("liger_kernel.transformers.monkey_patch")
    except ImportError as error:
        raise ConfigError(f"--fused-kernels liger: {error}; install requirements/liger.txt, or use none") from error
    # The walk over the vocabulary stays ours.
    liger.MODEL_TYPE_TO_APPLY_LIGER_FN[model_type](fused_linear_cross_entropy=False)


def compile_layers(layers: list[nn.Module], backend: str = "inductor") -> None:
    """Compile ``forward`` of ``layers`` with ``backend``, at the first call; layers of one class share what is compiled."""
    torch._dynamo.config.specialize_float = True  # as a symbol, a norm's epsilon makes the compiler run twice
    compiled = {kind: torch.compile(kind.forward, backend=backend, dynamic=True) for kind in set(map(type, layers))}
    for layer in layers:
        layer.forward = MethodType(compiled[type(layer)], layer)


def layers_as_written(args: Arguments) -> AbstractContextManager[Any]:
    """Return a context in which compiled layers run as they are written.

    With a key-value cache each layer would be compiled by itself, because its number is a constant there, until the limit of
    the compiler is reached and nothing is compiled any more.
    """
    return torch.compiler.set_stance("force_eager") if args.fused_kernels == "compile" else nullcontext()


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
    contexts = partial(create_selective_checkpoint_contexts, partial(_policy, attention_operators()))
    for layer in layers[len(layers) - unchecked - keeping : len(layers) - unchecked]:
        layer._gradient_checkpointing_func = partial(checkpoint, use_reentrant=False, context_fn=contexts)


def attention_operators() -> frozenset[Any]:
    """Return the overloads of `ATTENTION_KERNELS` that torch knows by now: a package brings its own when it is imported."""
    found = []
    for name in ATTENTION_KERNELS:
        package, _, operator = name.partition("::")
        if (packet := getattr(getattr(torch.ops, package), operator, None)) is not None:
            found += [getattr(packet, overload) for overload in packet.overloads()]
    return frozenset(found)


def _policy(kept: frozenset[Any], _context: Any, operator: Any, *_args: Any, **_kwargs: Any) -> CheckpointPolicy:
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE
