"""Correct for the difference between the engine's and the old policy's probabilities.

* ``--use-tis`` multiplies the policy loss by truncated weights (:func:`truncated_weights`).
* ``--custom-tis-function-path`` replaces that with a plugin: ``fn(*, args, pg_loss, train_log_probs, rollout_log_probs,
  loss_masks, total_lengths, response_lengths) -> (pg_loss, masks, metrics)``. The loss is reduced with the returned masks.
  The metrics, one value per token, are averaged with the samples' own masks.
* ``--get-mismatch-metrics`` without ``--use-tis`` uses the plugin's metrics only.
* ``--use-opsm`` masks sequences instead (:func:`off_policy_mask`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.losses.reduce import Reducer, rebuild_reducer, sequence_mean
from slime.args import Arguments
from slime.utils.metric_names import LARGEST
from slime.utils.misc import is_tuple, load_function
from slime.utils.ppo_utils import bounded_ratio
from slime.utils.streams import TrainBatch


def truncated_weights(
    old_log_probs: Tensor, rollout_log_probs: Tensor, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Return the elementwise weights and raw ratios, both without gradient.

    Truncated importance sampling: train on tokens that other weights, or another program, sampled.

    ``w_t = clip(pi_old(a_t) / pi_rollout(a_t), low, high)`` multiplies the policy loss of token t. ``pi_old`` is the trainer's
    policy before the step. ``pi_rollout`` is the probability that the engine reported, with the weight version it had then.
    Without bounds the weighted loss is an unbiased estimate for ``pi_old``; ``high`` bounds its variance (Ionides,
    "Truncated Importance Sampling", 2008; for engine against trainer: Yao et al., "Your Efficient RL Framework Secretly
    Brings You Off-Policy RL Training", 2025).
    """
    ratio = bounded_ratio(old_log_probs.detach() - rollout_log_probs.detach())
    return ratio.clamp(low, high), ratio


def off_policy_mask(
    new: Sequence[Tensor], old: Sequence[Tensor], advantages: Sequence[Tensor], masks: Sequence[Tensor], delta: float
) -> Tensor:
    """Return the mask ``[sum R_i]`` of zeros and ones, without gradient.

    Off-policy sequence masking: stop training on a bad reply once the policy has moved away from it.

    ``M = 0`` for the tokens with ``A_t < 0`` of a sequence with ``mean_t (log pi_old(a_t) - log pi(a_t)) > delta``,
    else 1. It multiplies the policy loss (DeepSeek-AI, "DeepSeek-V3.2", 2025). ``pi_old`` is the old policy of the
    ratio: the engine's with ``--use-rollout-logprobs``. Masked tokens stay in the loss's denominator.
    """
    differences = [before - now.detach() for before, now in zip(old, new, strict=True)]
    moved = [mean > delta for mean in sequence_mean(differences, masks)]
    return torch.cat([1.0 - ((a < 0) & far).float() for a, far in zip(advantages, moved, strict=True)])


def mismatch(trainer: Tensor, engine: Tensor, masks: Sequence[Tensor], reduce: Reducer) -> dict[str, Tensor]:
    """Return how far the trainer's log probabilities ``[sum R_i]`` of the sampled tokens are from the engine's.

    ``train_rollout_logprob_abs_diff`` is the mean of ``|d|`` with ``d = log pi_trainer(a_t) - log pi_engine(a_t)``,
    ``train_rollout_logprob_diff_max`` the largest over the step, and ``train_rollout_kl`` estimates KL(engine || trainer)
    by ``exp(d) - 1 - d`` (Schulman, "Approximating KL Divergence", 2020). A sample of older weights differs by their age,
    too.
    """
    difference = (trainer - engine).detach()
    trained = torch.cat([mask.bool() for mask in masks]).to(difference.device)
    largest = difference.abs()[trained].max() if trained.any() else difference.new_zeros(())
    return {
        "train_rollout_logprob_abs_diff": reduce(difference.abs()),
        "train_rollout_kl": reduce(bounded_ratio(difference) - 1.0 - difference),
        f"train_rollout_logprob_diff{LARGEST}": largest,
    }


def correct(
    args: Arguments, batch: TrainBatch, new: Tensor, losses: Tensor, reduce: Reducer
) -> tuple[Tensor, list[Tensor], Reducer, dict[str, Tensor]]:
    """Return the losses ``[sum R_i]``, the masks, the reducer for these masks, and the reduced metrics.

    ``new`` are the log probabilities of the step's own weights. With ``--use-rollout-logprobs`` the old ones are the
    engine's, so only the new ones tell trainer from engine.
    """
    masks = batch["loss_masks"]
    sampled = batch.get("rollout_log_probs")
    if sampled is None:
        if args.use_tis or args.get_mismatch_metrics:
            flag = "--use-tis" if args.use_tis else "--get-mismatch-metrics"
            raise ValueError(f"{flag} needs rollout_log_probs on every sample; request logprobs from the engine")
        return losses, masks, reduce, {}
    old, rollout = torch.cat(batch["log_probs"]), torch.cat(sampled)
    metrics = mismatch(new if args.use_rollout_logprobs else old, rollout, masks, reduce)
    if args.custom_tis_function_path:
        corrected, kept, found = _custom(args, batch, losses)
        metrics |= {name: reduce(_flat(value)) for name, value in found.items()}
        if args.use_tis:
            return corrected, kept, rebuild_reducer(args.calculate_per_token_loss, batch, kept), metrics
    elif args.use_tis:
        weights, ratio = truncated_weights(old, rollout, args.tis_clip_low, args.tis_clip)
        metrics |= {
            "tis": reduce(ratio),
            "tis_abs": reduce((ratio - 1.0).abs()),
            "tis_clipfrac": reduce((weights != ratio).float()),
        }
        losses = losses * weights
    return losses, masks, reduce, metrics


def _custom(args: Arguments, batch: TrainBatch, losses: Tensor) -> tuple[Tensor, list[Tensor], dict[str, Any]]:
    function = load_function(args.custom_tis_function_path)
    result = function(
        args=args,
        pg_loss=losses,
        train_log_probs=batch["log_probs"],
        rollout_log_probs=batch["rollout_log_probs"],
        loss_masks=batch["loss_masks"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
    )
    where = f"--custom-tis-function-path {args.custom_tis_function_path}"
    if not (is_tuple(result) and len(result) == 3):
        raise TypeError(f"{where} must return (pg_loss, masks, metrics), not {type(result).__name__}")
    corrected, masks, metrics = result
    lengths = [len(mask) for mask in masks]
    if corrected.shape != losses.shape or lengths != list(batch["response_lengths"]):
        raise ValueError(
            f"{where} returned losses {tuple(corrected.shape)} and masks of {lengths} tokens "
            f"for responses of {list(batch['response_lengths'])} tokens"
        )
    return corrected, list(masks), metrics


def _flat(values: Any) -> Tensor:
    flat = values if isinstance(values, Tensor) else torch.cat(list(values))
    return flat.detach().float()
