"""A small packed micro-batch, and its log probabilities, entropies and top-K KL in float64 over the whole vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

VOCABULARY, K = 40, 4


def vocabulary_case() -> dict[str, Any]:
    """Return a batch of three samples, one of them with an empty response, with float64 ``logits`` and random ``weights``."""
    generator = torch.Generator().manual_seed(3)
    total_lengths, response_lengths = [6, 4, 9], [4, 0, 5]

    def normal(*shape: int) -> Tensor:
        # Values that bfloat16 holds exactly, so that only the arithmetic differs.
        return (torch.randn(*shape, generator=generator) * 3).bfloat16().double()

    def ids(*shape: int) -> Tensor:
        return torch.randint(VOCABULARY, shape, generator=generator)

    support = [
        torch.stack([torch.randperm(VOCABULARY, generator=generator)[:K] for _ in range(r)]) if r else ids(0, K)
        for r in response_lengths
    ]
    return {
        "logits": normal(1, sum(total_lengths), VOCABULARY),
        "unconcat_tokens": [ids(total) for total in total_lengths],
        "total_lengths": total_lengths,
        "response_lengths": response_lengths,
        "loss_masks": [torch.ones(r, dtype=torch.int64) for r in response_lengths],
        "weights": [normal(r) for r in response_lengths],
        "teacher_topk_indices": support,
        "teacher_topk_log_probs": [
            torch.log_softmax(torch.randn(r, VOCABULARY, generator=generator), -1)[:, :K] for r in response_lengths
        ],
    }


def _tables(logits: Tensor, layout: dict[str, Any], temperature: float) -> list[tuple[Tensor, Tensor]]:
    tables, end = [], 0
    for tokens, total, response in zip(
        layout["unconcat_tokens"], layout["total_lengths"], layout["response_lengths"], strict=True
    ):
        end += total
        rows = logits[0, end - response - 1 : end - 1] / temperature
        tables.append((torch.log_softmax(rows, dim=-1), tokens[total - response :]))
    return tables


def reference_log_probs(
    logits: Tensor, layout: dict[str, Any], temperature: float
) -> tuple[list[Tensor], list[Tensor]]:
    """Return log probabilities and entropies ``[R_i]`` of the responses."""
    tables = _tables(logits, layout, temperature)
    log_probs = [table[torch.arange(len(ids)), ids] for table, ids in tables]
    return log_probs, [-(table.exp() * table).sum(-1) for table, _ in tables]


def reference_topk_kl(logits: Tensor, case: dict[str, Any], temperature: float) -> Tensor:
    """Return the sum over samples of the mean reverse KL over the teacher's support and the tail."""
    total = logits.sum() * 0.0
    for (table, _), ids, teacher in zip(
        _tables(logits, case, temperature), case["teacher_topk_indices"], case["teacher_topk_log_probs"], strict=True
    ):
        p, q = table.gather(-1, ids).exp(), teacher.double().exp()
        p, q = (torch.cat([x, 1.0 - x.sum(-1, keepdim=True)], dim=-1) for x in (p, q))
        if len(p):
            total = total + (p * (p.log() - q.log())).sum(-1).mean()
    return total
