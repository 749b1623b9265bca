"""Reduce per-token values to one number that can be summed over micro-batches and ranks.

There are two reductions:

* The sum over samples of the masked token mean. The trainer divides it by the number of rollouts of the step.
* The masked token sum. The trainer divides it by the number of unmasked tokens of the step.

Nothing here waits for the device. A sample whose mask is all zero adds zero. A sample's mean divides by the unmasked tokens of its whole rollout, so a
trajectory that was split into many samples counts once, whatever its length.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slime.args import Arguments
from slime.utils.misc import load_function
from slime.utils.streams import TrainBatch

Reducer = Callable[[Tensor], Tensor]


def sum_of_sample_mean(
    response_lengths: Sequence[int], loss_masks: Sequence[Tensor], mask_sums: Sequence[float | Tensor] | None = None
) -> Reducer:
    """Return ``f(x [sum R_i]) = sum_i (sum_t m_it x_it) / max(1, D_i)``.

    ``D_i`` are ``mask_sums``: the number of unmasked tokens of the sample's rollout; default ``sum_t m_it``.
    """

    def reduce(values: Tensor) -> Tensor:
        parts = torch.split(values, list(response_lengths))
        masks = [mask.to(values) for mask in loss_masks]

        def as_scalar(total: float | Tensor) -> Tensor:
            return total.to(values) if isinstance(total, Tensor) else values.new_full((), total)

        sums = [mask.sum() for mask in masks] if mask_sums is None else [as_scalar(total) for total in mask_sums]
        means = [
            (part * mask).sum() / total.clamp_min(1.0) for part, mask, total in zip(parts, masks, sums, strict=True)
        ]
        return torch.stack(means).sum() if means else values.sum()

    return reduce


def token_sum(response_lengths: Sequence[int], loss_masks: Sequence[Tensor]) -> Reducer:
    """Return ``f(x [sum R_i]) = sum_it m_it x_it``, for the mean over the tokens of the step."""

    def reduce(values: Tensor) -> Tensor:
        if values.numel() != sum(response_lengths):
            raise ValueError(f"got {values.numel()} values for responses of {sum(response_lengths)} tokens in total")
        if not loss_masks:
            return values.sum()
        return (values * torch.cat([mask.to(values) for mask in loss_masks])).sum()

    return reduce


def make_reducer(
    per_token: bool,
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    mask_sums: Sequence[float | Tensor] | None = None,
) -> Reducer:
    """Return :func:`token_sum` for ``--calculate-per-token-loss``, else :func:`sum_of_sample_mean`."""
    if per_token:
        return token_sum(response_lengths, loss_masks)
    return sum_of_sample_mean(response_lengths, loss_masks, mask_sums)


def rebuild_reducer(per_token: bool, batch: TrainBatch, masks: Sequence[Tensor]) -> Reducer:
    """Return the reducer of ``batch`` with other masks.

    The step's number of rollouts or tokens does not change.

    A sample that is a whole rollout is divided by the tokens left in its mask. A piece of a larger rollout is still divided
    by the rollout's original token count, because the other pieces' new masks are unknown here.
    """
    before = batch.get("rollout_mask_sums")
    if before is None:
        return make_reducer(per_token, batch["response_lengths"], masks)
    sums = [
        torch.where(old.sum() == total, new.sum().float(), new.new_full((), total, dtype=torch.float32))
        for total, old, new in zip(before, batch["loss_masks"], masks, strict=True)
    ]
    return make_reducer(per_token, batch["response_lengths"], masks, sums)


def policy_reducer(args: Arguments, batch: TrainBatch, masks: Sequence[Tensor], default: Reducer) -> Reducer:
    """Return the reducer of the policy loss: ``default``, or the plugin's.

    The plugin of ``--custom-pg-loss-reducer-function-path`` is ``fn(total_lengths, response_lengths, loss_masks,
    calculate_per_token_loss) -> reducer``. It also gets ``args`` if it has a parameter of that name. The trainer
    divides the reducer's result by the step's number of samples (or tokens).
    """
    path = args.custom_pg_loss_reducer_function_path
    if not path:
        return default
    function = load_function(path)
    extra = {"args": args} if "args" in inspect.signature(function).parameters else {}
    lengths = (batch["total_lengths"], batch["response_lengths"])
    return function(*lengths, list(masks), args.calculate_per_token_loss, **extra)


def sequence_mean(values: Sequence[Tensor], masks: Sequence[Tensor]) -> list[Tensor]:
    """Return the mean over each sample's unmasked tokens, as scalars; 0 for a sample without any."""
    pairs = [(value, mask.to(value)) for value, mask in zip(values, masks, strict=True)]
    return [(value * mask).sum() / mask.sum().clamp_min(1.0) for value, mask in pairs]


def constant_denominator(
    total_lengths: Sequence[int],
    response_lengths: Sequence[int],
    loss_masks: Sequence[Tensor],
    calculate_per_token_loss: bool,
    args: Arguments,
) -> Reducer:
    """Return ``f(x [sum R_i]) = sum_it m_it x_it / args.rollout_max_response_len``.

    Dr.GRPO: a constant denominator, so that a longer wrong answer is not penalised less per token.

    ``sum_it m_it L_it / C`` with ``C = --rollout-max-response-len``, instead of each sample's own length (Liu et al.,
    "Understanding R1-Zero-Like Training: A Critical Perspective", 2025). The other half of the method is
    ``--disable-grpo-std-normalization``: rewards are not divided by the group's deviation. Use:
    ``--custom-pg-loss-reducer-function-path slime.algorithms.losses.reduce.constant_denominator``.
    """
    if calculate_per_token_loss:
        raise ValueError("Dr.GRPO divides by a constant; remove --calculate-per-token-loss")
    longest = args.rollout_max_response_len
    if not longest:
        raise ValueError("Dr.GRPO divides by the maximum response length; add --rollout-max-response-len N")
    total = token_sum(response_lengths, loss_masks)
    return lambda values: total(values) / longest
