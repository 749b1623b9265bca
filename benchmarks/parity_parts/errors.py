"""What rounding does to log probabilities: the float32 reference, and the rule that tells rounding from a fault.

The reference is transformers' own model with the same weights in float32, its softmax and sums too; of two implementations in
bfloat16 each is held to it, not to the other. The rule: the mean and the 99th percentile of an implementation's errors are at most
`FACTOR` times those that the trainer, as written, makes on the same tokens. The difference of two accepted ones is then bounded by
the sum of their errors. The largest error of a single token follows no rule.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

FACTOR = 1.5
"""Between what chance does and what faults do (log/parity.md#parity-rounding). A second independent error of the same size gives 1.41."""
TEMPERATURE = 0.6
"""Of all comparisons. Below 1, so that a temperature that is applied twice, or not at all, shows."""
ROWS = 512


@dataclass(frozen=True)
class Errors:
    """Differences of log probabilities per token, in nats.

    Attributes:
        mean: of the absolute values.
        high: their 99th percentile.
        worst: the largest.
    """

    mean: float
    high: float
    worst: float

    @classmethod
    def of(cls, differences: Tensor) -> Errors:
        """Return the errors of ``differences`` ``[N]``."""
        found = differences.detach().double().abs().cpu().sort().values
        return cls(float(found.mean()), float(found[int(0.99 * (len(found) - 1))]), float(found[-1]))

    def within(self, own: Errors) -> bool:
        """Whether these are rounding, if ``own`` are the errors of the trainer as written on the same tokens."""
        return self.mean <= FACTOR * own.mean and self.high <= FACTOR * own.high

    def __str__(self) -> str:
        return f"{self.mean:.4f} on average, {self.high:.4f} at the 99th percentile, {self.worst:.4f} at most"


@contextmanager
def exact_products() -> Iterator[None]:
    """Run the block with float32 matrix products of CUDA in float32, not TF32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def in_float32(model: Any) -> Any:
    """Return a copy of a transformers ``model`` that computes in float32, attention by plain products."""
    exact = copy.deepcopy(model).float().eval()
    exact.set_attn_implementation("eager")
    return exact


@torch.no_grad()
def log_probs(model: Any, prompt: Sequence[int], ids: Sequence[int], temperature: float) -> Tensor:
    """Return the log probabilities ``[len(ids)]`` of ``ids`` after ``prompt`` by a transformers ``model``, float32, on the CPU."""
    tokens = torch.tensor([[*prompt, *ids]], device=model.device)
    with exact_products():
        hidden = model.base_model(input_ids=tokens, use_cache=False).last_hidden_state
        return of_hidden(model, hidden, len(prompt), tokens, temperature)


def of_hidden(model: Any, hidden: Tensor, start: int, tokens: Tensor, temperature: float) -> Tensor:
    """Return the log probabilities of ``tokens`` ``[1, T]`` from ``start`` on, given hidden states ``[1, T, H]``."""
    found = []
    for rows, ids in zip(hidden[0, start - 1 : -1].split(ROWS), tokens[0, start:].split(ROWS), strict=True):
        table = (model.get_output_embeddings()(rows).float() / temperature).log_softmax(-1)
        found.append(table.gather(-1, ids.unsqueeze(-1)).squeeze(-1).cpu())
    return torch.cat(found)
