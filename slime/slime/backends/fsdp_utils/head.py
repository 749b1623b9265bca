"""The LM head of a Hugging Face model as pairs of inputs and weights, an adapter and a bias included."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from slime.logprobs.response_rows import HeadPairs


def head_pairs(lm_head: Any, hidden: Tensor) -> HeadPairs:
    """Return inputs ``[N, H_i]`` and weights ``[V, H_i]`` whose logits ``sum_i x_i W_i^T`` are ``lm_head(hidden)``.

    Raises:
        TypeError: the head is no linear layer.
    """
    with_adapter = hasattr(lm_head, "lora_A")
    linear = lm_head.get_base_layer() if with_adapter else lm_head
    if not isinstance(linear, nn.Linear):
        raise TypeError(f"the LM head is a {type(linear).__name__}; a model needs a linear one to be trained here")
    pairs = [(hidden, linear.weight)]
    if linear.bias is not None:
        pairs.append((hidden.new_ones(len(hidden), 1), linear.bias.unsqueeze(-1)))
    if with_adapter and not lm_head.disable_adapters:
        for name in lm_head.active_adapters:
            down, up = lm_head.lora_A[name], lm_head.lora_B[name]
            dropped: Any = lm_head.lora_dropout[name]
            rows = dropped(hidden.to(down.weight.dtype))
            pairs.append((down(rows) * lm_head.scaling[name], up.weight))
    return pairs
