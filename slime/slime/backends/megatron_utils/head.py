"""From final hidden states to log probabilities or logits, over a vocabulary split over tensor-parallel ranks.

Context-parallel ranks each compute their own rows, and exchange log probabilities, never logits.

Guarantees: the gradient of the hidden states is the sum over the ranks' columns. Rows that pad the vocabulary get no
probability and no gradient. At most one chunk of positions has logits at a time, unless the caller requests logits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slime.backends.megatron_utils.context_parallel import share_of, whole_responses
from slime.backends.trainer.micro_batch import MicroBatch
from slime.logprobs.context_parallel import own_place
from slime.logprobs.response_rows import ResponseRows
from slime.utils.vocab_parallel import tensor_parallel_group

# Logit of a padding row: its probability is exactly 0 in float32.
_NEVER = -1e9


class Head:
    """The LM head of one forward pass of the last pipeline stage; called like every back end's model."""

    def __init__(self, model: Any, hidden: Tensor, vocab_size: int) -> None:
        """``hidden`` ``[T, 1, H]`` is the unwrapped ``model``'s output; with sequence parallelism, this rank's part."""
        from megatron.core import tensor_parallel

        shared = model.share_embeddings_and_output_weights
        self._weight: Tensor = model.shared_embedding_or_output_weight() if shared else model.output_layer.weight
        self._group = tensor_parallel_group()
        self._vocab_size = vocab_size
        if model.config.sequence_parallel:
            hidden = tensor_parallel.gather_from_sequence_parallel_region(hidden, tensor_parallel_output_grad=True)
        else:
            hidden = tensor_parallel.copy_to_tensor_model_parallel_region(hidden)
        self._hidden = hidden.squeeze(1)

    def _logits(self, rows: Tensor) -> Tensor:
        """Return this rank's logits ``[n, V/size]`` of ``rows`` ``[n, H]``."""
        logits = torch.nn.functional.linear(rows.to(self._weight.dtype), self._weight)
        width = self._weight.size(0)
        first = self._group.rank() * width if self._group is not None else 0
        unused = min(width, max(0, first + width - self._vocab_size))
        if unused:
            nothing = logits.new_full((len(rows), unused), _NEVER)
            logits = torch.cat([logits[:, : width - unused], nothing], dim=1)
        return logits

    def __call__(
        self,
        batch: MicroBatch,
        *,
        temperature: float,
        chunk_size: int,
        want_logits: bool = False,
        of_rows: Callable[[ResponseRows], Any] | None = None,
    ) -> Any:
        """Return log probabilities and entropies ``[N]`` of response rows, float32 logits, or ``of_rows``' result.

        The logits ``[1, T, V/size]`` cover this rank's tokens and columns, sample after sample, without the
        temperature. With context parallelism a sample has two padded pieces. ``of_rows`` gets this rank's rows.
        """
        share = share_of(batch, *own_place())
        if want_logits:
            return self._logits(self._hidden[: share.input_ids.size(1)]).float().unsqueeze(0)
        pairs = [(self._hidden[share.rows], self._weight)]
        rows = ResponseRows(pairs, chunk_size, self._group, self._vocab_size)
        if of_rows:
            return of_rows(rows)
        values = rows.log_probs(batch.targets[share.owned], temperature=temperature)
        log_probs, entropy = (whole_responses(value, share.owned, len(batch.targets)) for value in values)
        return log_probs, entropy
