"""Build a small rollout as tensors, as the trainer passes it to advantages and losses."""

from __future__ import annotations

from typing import Any

import torch

from slime.args import Arguments
from slime.utils import streams

VOCABULARY = 32
K = 4
RESPONSES = (3, 1, 4)


def rollout_data(args: Arguments) -> dict[str, Any]:
    """Return three samples with every stream: per sample a tensor ``[R_i]`` (top-K: ``[R_i, K]``)."""
    generator = torch.Generator().manual_seed(0)

    def log_probs() -> list[torch.Tensor]:
        return [-3.0 - torch.rand(length, generator=generator) for length in RESPONSES]

    def top_k(ids: bool) -> list[torch.Tensor]:
        values = [torch.randn(length, VOCABULARY, generator=generator) for length in RESPONSES]
        return [rows.argsort(-1)[:, :K] if ids else rows.log_softmax(-1)[:, :K] for rows in values]

    totals = [2 + length for length in RESPONSES]
    data: dict[str, Any] = {
        "unconcat_tokens": [torch.randint(VOCABULARY, (total,), generator=generator) for total in totals],
        "total_lengths": totals,
        "response_lengths": list(RESPONSES),
        "loss_masks": [torch.ones(length, dtype=torch.int64) for length in RESPONSES],
        "rewards": [1.0, -1.0, 0.5],
        "raw_reward": [1.0, 0.0, 0.5],
        "truncated": [0, 0, 1],
        "sample_indices": [0, 1, 2],
        "group_indices": [0, 0, 1],
        "rollout_ids": [0, 1, 2],
        "advantages": [torch.full((length,), 1.0 - index) for index, length in enumerate(RESPONSES)],
        "kl": [torch.zeros(length) for length in RESPONSES],
    }
    data["loss_masks"][2][1] = 0
    data["returns"] = [values.clone() for values in data["advantages"]]
    for stream in streams.STREAMS:
        if stream.per_token and stream.name not in data and (stream.attribute or stream.in_contract):
            data[stream.name] = top_k(stream.dtype == "int64") if stream.top_k else log_probs()
    data["metadata"] = [{}, {}, {}]
    return data


def micro_batch(data: dict[str, Any], indices: list[int]) -> dict[str, Any]:
    """Return the samples ``indices`` of ``data`` as a batch with copied tensors."""

    def copied(value: Any) -> Any:
        return value.clone() if isinstance(value, torch.Tensor) else value

    return {name: [copied(values[index]) for index in indices] for name, values in data.items()}


def logits_of(data: dict[str, Any]) -> torch.Tensor:
    """Return random float32 logits ``[1, T, V]`` for all tokens of ``data``."""
    generator = torch.Generator().manual_seed(1)
    return torch.randn(1, sum(data["total_lengths"]), VOCABULARY, generator=generator)
