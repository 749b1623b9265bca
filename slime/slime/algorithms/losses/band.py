"""Importance weights inside a band, nothing outside: what IcePop and the rejections share.

``w_t = pi_old(a_t) / pi_rollout(a_t)``, and the band is ``[--tis-clip-low, --tis-clip]``. What is judged against the band may
be another ratio than the token's own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from slime.args import Arguments

Correction = tuple[Tensor, list[Tensor], dict[str, Tensor]]


def log_ratios(train: Sequence[Tensor], rollout: Sequence[Tensor]) -> list[Tensor]:
    """Return ``log w`` ``[R_i]`` per sample, without gradient."""
    return [(old - sampled).detach() for old, sampled in zip(train, rollout, strict=True)]


def weigh_inside(args: Arguments, pg_loss: Tensor, own: Sequence[Tensor], judged: Sequence[Tensor]) -> Correction:
    """Return losses ``[sum R_i]`` times ``w`` inside the band and 0 outside, what is inside ``[R_i]``, and metrics per token.

    ``own`` are the log ratios of the tokens, ``judged`` those that are held against the band.
    """
    kept = [(d.exp() >= args.tis_clip_low) & (d.exp() <= args.tis_clip) for d in judged]
    ratio, inside = torch.exp(torch.cat(list(own))), torch.cat(kept)
    metrics = {"tis": ratio, "tis_abs": (ratio - 1.0).abs(), "tis_clipfrac": (~inside).float()}
    return pg_loss * torch.where(inside, ratio, torch.zeros_like(ratio)), kept, metrics
