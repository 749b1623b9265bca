"""Experts that no router would choose, and a Hugging Face mixture of experts whose tokens go to them, in float64."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from slime.args import Arguments
from slime.utils.types import EXPERTS, expert_shape
from tests.helpers.reference_loss import reference

__all__ = ["EXPERTS", "forced_reference", "random_experts"]


def random_experts(checkpoint: str, tokens: list[list[int]]) -> list[np.ndarray]:
    """Return ``[tokens - 1, layers, K]`` distinct experts of each sample, the same at every call."""
    shape, rng = expert_shape(checkpoint), np.random.default_rng(7)
    found = []
    for ids in tokens:
        numbers = np.tile(np.arange(shape.experts, dtype=np.int16), (len(ids) - 1, shape.layers, 1))
        found.append(rng.permuted(numbers, axis=-1)[..., : shape.per_token])
    return found


def forced_reference(args: Arguments, data: dict[str, Any]) -> tuple[float, dict[str, Tensor]]:
    """Return the loss and the gradients of ``reference``, with the experts of ``data``; the last token of a sample has the first."""
    from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeTopKRouter

    layers = expert_shape(args.hf_checkpoint).layers
    order = iter([array[:, layer] for array in data[EXPERTS] for layer in range(layers)])

    def forced(router: Any, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        logits = hidden.reshape(-1, router.hidden_dim) @ router.weight.T
        experts = torch.tensor(next(order)).long()
        experts = torch.cat([experts, torch.arange(router.top_k)[None]])
        gates = torch.softmax(logits, dim=-1).gather(1, experts)
        return logits, gates / gates.sum(-1, keepdim=True), experts

    with patch.object(Qwen3MoeTopKRouter, "forward", forced):
        result = reference(args, data)
    assert next(order, None) is None
    return result
