"""Attention inside each sample of a packed sequence, with PyTorch's scaled dot product attention.

A pack of samples of ``n_i`` tokens costs ``sum n_i^2`` instead of ``(sum n_i)^2`` and needs no mask, because each
sample is its own causal call. Registered with transformers as :data:`NAME`, for which transformers builds no mask.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

NAME = "packed_sdpa"


def packed_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    sequence_lengths: list[int] | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Return ``[1, T, H, D]`` for ``query`` ``[1, H, T, D]``; ``sequence_lengths`` sum to T."""
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    if sequence_lengths is None:
        raise ValueError(
            f"{type(module).__name__} does not pass keyword arguments to its attention: use --no-pack-sequences"
        )
    kwargs["is_causal"] = True
    pieces = [tensor.split(sequence_lengths, dim=2) for tensor in (query, key, value)]
    outputs = [
        sdpa_attention_forward(module, q, k, v, attention_mask, **kwargs)[0] for q, k, v in zip(*pieces, strict=True)
    ]
    return torch.cat(outputs, dim=1), None


def register() -> None:
    """Register :data:`NAME` with transformers; idempotent."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, packed_sdpa)


def resolve(implementation: str, packed: bool, layer_types: list[str] | None) -> str:
    """Return the attention implementation to build the model with.

    ``sdpa`` of a packed model without sliding windows becomes :data:`NAME`. Others stay: flash attention gets
    cumulative lengths, and the rest build a block-diagonal mask from restarting positions.
    """
    sliding = any("sliding" in kind for kind in layer_types or [])
    if implementation != "sdpa" or not packed or sliding:
        return implementation
    register()
    return NAME


def attention_arguments(implementation: str, sequence_lengths: list[int], device: torch.device) -> dict[str, Any]:
    """Return the keyword arguments that tell ``implementation`` where the samples of a pack begin."""
    if implementation == NAME:
        return {"sequence_lengths": sequence_lengths}
    if implementation.startswith("flash_attention"):
        ends = torch.tensor([0, *sequence_lengths], device=device).cumsum(0).to(torch.int32)
        longest = max(sequence_lengths)
        return {"cu_seq_lens_q": ends, "cu_seq_lens_k": ends, "max_length_q": longest, "max_length_k": longest}
    return {}
