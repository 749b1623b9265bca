"""One number per sequence out of its tokens."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def sequence_mean(values: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
    """Return the mean over the unmasked tokens of each ``[R_i]``, as scalars; 0 without an unmasked token."""
    pairs = [(value, mask.to(value)) for value, mask in zip(values, masks, strict=True)]
    return [(value * mask).sum() / mask.sum().clamp_min(1.0) for value, mask in pairs]
