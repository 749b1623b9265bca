"""Bytes of activations per token, for a decoder layer and for the logits.

Guarantees: :func:`saved_bytes` is what autograd saves for a layer of transformers' Qwen2 and Qwen3 in bfloat16 with
packed attention. It is counted from the operations and equals what ``saved_tensors_hooks`` report (a test compares).
With gradient checkpointing a layer saves only its input, ``2 H``. Layers are recomputed one at a time, and the backward
pass of that layer holds another ``5 F`` bytes of gradients (measured with torch's ``FSDPMemTracker``, see
log/training.md#memory-budget; a test repeats it).
"""

from __future__ import annotations

from slime.arguments.memory_budget.shape import Shape


def saved_bytes(
    shape: Shape, *, lora_rank: int = 0, tensor: int = 1, sequence_parallel: bool = False, fused: bool = False
) -> float:
    """Return the bytes per token that autograd saves for one layer on a rank.

    - Two norms save ``x`` in float32, the scaled ``x`` if their weight is trained, and their output: ``16 H``, or ``12
      H`` with a frozen weight. Norms on heads save 6 bytes per element of query and key (4 if frozen).
    - Attention saves query, key, value, its output twice and a float32 sum per head.
    - The MLP saves gate, up, the activation and the product: ``8 F``. An expert's inner width counts once per expert of
      a token, as do the token's copies sent to the experts.

    Args:
        shape: the decoder.
        lora_rank: rank of adapters over frozen weights; 0 when all weights are trained.
        tensor: ranks that split heads and inner widths.
        sequence_parallel: whether these ranks also split the activations between layers.
        fused: Transformer Engine's kernels, counted from their inputs, not measured. A norm saves its input and output,
            the MLP saves gate, up and the product, attention saves its inputs and output once.
    """
    if fused:
        inner = shape.ffn * (shape.active_experts or 1)
        norm = 2 if shape.qk_norm else 0
        split = (4 + norm) * shape.query + (4 + norm) * shape.key + 6 * inner
        whole = 8 * shape.hidden + 4 * shape.hidden * shape.active_experts
        return split / tensor + whole / (tensor if sequence_parallel else 1)
    frozen = lora_rank > 0
    norm = (4 if frozen else 6) if shape.qk_norm else 0
    inner = shape.ffn * (shape.active_experts or 1)
    split = (6 + norm) * shape.query + (4 + norm) * shape.key + 8 * inner
    split += (8 if shape.qk_norm else 4) * shape.heads + (4 * shape.kv_heads if shape.qk_norm else 0)
    whole = (12 if frozen else 16) * shape.hidden + 8 + 4 * shape.hidden * shape.active_experts
    return split / tensor + whole / (tensor if sequence_parallel else 1) + 14 * lora_rank


def gradient_bytes(shape: Shape, *, tensor: int = 1) -> float:
    """Return the gradient bytes per token that a layer's backward pass adds to the saved activations."""
    return 5 * shape.ffn * (shape.active_experts or 1) / tensor


def whole_logits_bytes(vocab: int, tokens: int) -> float:
    """Return the bytes of full logits, if a loss needs them: bfloat16 and float32, each with its gradient."""
    return 12 * vocab * tokens
