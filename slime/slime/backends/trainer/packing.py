"""A micro-batch of samples as one model input.

Guarantees: no token of one sample sees another sample. Response rows come out in sample order. A micro-batch always has
at least one row, so that every rank runs the same collectives even without a sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slime.backends.trainer.rollout_data import Images, SampleImages, join_images


@dataclass(frozen=True)
class MicroBatch:
    """One model input.

    Attributes:
        input_ids: ``[1, T]`` packed, or ``[B, L]`` padded on the right.
        position_ids: ``[1, T]``, restarting at every sample; None when padded.
        sequence_lengths: tokens of each sample, in order.
        response_lengths: response tokens of each sample.
        rows: ``[N]`` positions in the flattened input whose output predicts a response token.
        targets: ``[N]`` those response tokens.
        token_rows: ``[T]`` positions of the real tokens in the flattened input.
        is_filler: True if there is no sample and the input is a dummy without effect.
        images: images of the samples; None in a text-only rollout.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    sequence_lengths: list[int]
    response_lengths: list[int]
    rows: Tensor
    targets: Tensor
    token_rows: Tensor
    is_filler: bool
    images: Images | None = None

    def per_sample(self, values: Tensor) -> list[Tensor]:
        """Split ``values`` ``[N]`` into ``[R_i]`` per sample."""
        return list(values[: sum(self.response_lengths)].split(self.response_lengths)) if self.response_lengths else []


def build(
    tokens: Sequence[Sequence[int]],
    response_lengths: Sequence[int],
    *,
    packed: bool,
    device: torch.device,
    images: Sequence[SampleImages | None] | None = None,
) -> MicroBatch:
    """Return the model input of samples given by ``tokens`` (prompt and response ids) and ``images``."""
    is_filler = not tokens
    sequences = [list(ids) for ids in tokens] or [[0, 0]]
    lengths = [len(ids) for ids in sequences]
    for index, (length, response) in enumerate(zip(lengths, response_lengths, strict=False)):
        if not 0 <= response < length:
            raise ValueError(
                f"sample {index} of a micro-batch has {length} tokens and a response of {response}: "
                "a response needs at least one token before it"
            )
    width = max(lengths)
    starts = [sum(lengths[:i]) if packed else i * width for i in range(len(lengths))]
    if packed:
        input_ids = torch.tensor([[token for ids in sequences for token in ids]], device=device)
        position_ids = torch.cat([torch.arange(length) for length in lengths]).unsqueeze(0).to(device)
    else:
        input_ids = torch.tensor([ids + [0] * (width - len(ids)) for ids in sequences], device=device)
        position_ids = None
    rows, targets, token_rows = [], [], []
    for start, ids, response in zip(starts, sequences, response_lengths, strict=False):
        end = start + len(ids)
        rows += range(end - response - 1, end - 1)
        targets += ids[len(ids) - response :]
    for start, length in zip(starts, lengths, strict=True):
        token_rows += range(start, start + length)
    return MicroBatch(
        input_ids=input_ids,
        position_ids=position_ids,
        sequence_lengths=lengths,
        response_lengths=list(response_lengths),
        rows=torch.tensor(rows or [0], device=device),
        targets=torch.tensor(targets or [0], device=device),
        token_rows=torch.tensor(token_rows, device=device),
        is_filler=is_filler,
        images=None if images is None else join_images(sequences, images or [None], device),
    )
