"""The logits that predict the response tokens of a micro-batch, before anything computed them.

A loss asks for log probabilities of the tokens it cares about, and gets them without the logits of a whole row ever being in
memory. Rows are in the order of the samples; a context-parallel rank has the rows it holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from slime.backends.trainer.head_memory import chunk_rows
from slime.backends.trainer.logprobs import HeadPairs, log_probs_of_head


@dataclass(frozen=True)
class ResponseRows:
    """Hidden states of response rows and the head that they go through.

    Attributes:
        pairs: inputs ``[N, H_i]`` and weights ``[V/n, H_i]`` of the head.
        chunk: rows of logits that may exist at a time; not positive: as many as fit the default.
        group: the ranks that share the vocabulary, or None.
        vocab_size: tokens of the vocabulary, where padding follows them.
    """

    pairs: HeadPairs
    chunk: int
    group: Any = None
    vocab_size: int | None = None

    def __len__(self) -> int:
        return len(self.pairs[0][0])

    def log_probs(self, ids: Tensor, *, temperature: float, with_entropy: bool = True) -> tuple[Tensor, Tensor]:
        """Return log probabilities of ``ids`` ``[N]`` or ``[N, K]``, and entropies ``[N]``; see :func:`log_probs_of_head`."""
        return log_probs_of_head(
            self.pairs,
            ids,
            temperature=temperature,
            chunk=chunk_rows(self.chunk, self.pairs[0][1].size(0)),
            with_entropy=with_entropy,
            group=self.group,
            vocab_size=self.vocab_size,
        )

    def nothing(self) -> Tensor:
        """Return zero with a gradient path to the head and the hidden states."""
        rows = self.pairs[0][0]
        ids = rows.new_zeros(len(rows)).long()
        return self.log_probs(ids, temperature=1.0, with_entropy=False)[0].sum() * 0.0
