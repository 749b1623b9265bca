"""The built-in policy loss: a sum of named terms.

``L = reduce(m_t w_t * surrogate_t) + kl_loss_coef * reduce(KL) - entropy_coef * reduce(H)``. The surrogate is PPO's clip or the
estimator's own. ``w_t`` are importance weights of trainer against engine, and ``m_t`` is OPSM's mask; both default to 1.
The loss reads per-token streams only and knows no method.

A surrogate is ``(args, new, old, advantages, masks) -> (losses [sum R_i], 1.0 where it clipped)``; estimators without one
of their own use :func:`slime.utils.ppo_utils.compute_policy_loss`.

The difference between the engine's and the old policy's probabilities is corrected as flags ask:

* ``--use-tis`` multiplies the policy loss by truncated weights (:func:`truncated_weights`).
* ``--custom-tis-function-path`` replaces that with a plugin: ``fn(*, args, pg_loss, train_log_probs, rollout_log_probs,
  loss_masks, total_lengths, response_lengths) -> (pg_loss, masks, metrics)``. The loss is reduced with the returned masks.
  The metrics, one value per token, are averaged with the samples' own masks.
* ``--get-mismatch-metrics`` without ``--use-tis`` uses the plugin's metrics only.
* ``--use-opsm`` masks sequences instead (:func:`off_policy_mask`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from slime.algorithms.losses.reduce import Reducer, policy_reducer, rebuild_reducer, sequence_mean
from slime.args import Arguments
from slime.logprobs.packed_logits import get_log_probs_and_entropy
from slime.logprobs.response_rows import ResponseRows
from slime.utils.metric_names import LARGEST
from slime.utils.misc import is_tuple, load_function
from slime.utils.ppo_utils import bounded_ratio, compute_approx_kl, compute_policy_loss
from slime.utils.streams import TrainBatch


def gspo_surrogate(
    args: Arguments, new: Sequence[Tensor], old: Sequence[Tensor], advantages: Tensor, masks: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the losses ``[sum R_i]`` and 1.0 where the sequence was clipped.

    GSPO: one importance ratio per sequence, clipped as a whole.

    ``s = exp(mean_t (log pi(a_t) - log pi_old(a_t)))`` over the unmasked tokens. Each token gets the clipped surrogate of
    ``s`` and ``A``, so that the sample mean is the sequence's objective (Zheng et al., "Group Sequence Policy
    Optimization", 2025, equations 5 and 6). A sequence without an unmasked token has ``s = 1``.
    """
    differences = [before - now for before, now in zip(old, new, strict=True)]
    ppo_kl = torch.cat(
        [mean.expand_as(d) for mean, d in zip(sequence_mean(differences, masks), differences, strict=True)]
    )
    return compute_policy_loss(ppo_kl, advantages, args.eps_clip, args.eps_clip_high, args.eps_clip_c)


def cispo_surrogate(
    args: Arguments, new: Sequence[Tensor], old: Sequence[Tensor], advantages: Tensor, masks: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Return the losses ``[sum R_i]`` and 1.0 where the weight was clipped.

    CISPO: REINFORCE with a clipped importance weight, so that a clipped token keeps a gradient.

    ``L_t = - sg(clip(r_t, 1 - eps_clip, 1 + eps_clip_high)) A_t log pi(a_t)`` with ``r = pi / pi_old`` and ``sg`` the
    stop-gradient (MiniMax, "MiniMax-M1", 2025, equation 4). The paper sets no lower bound: ``--eps-clip 1``.
    """
    log_probs = torch.cat(list(new))
    ratio = bounded_ratio(log_probs.detach() - torch.cat(list(old)))
    weight = ratio.clamp(1.0 - args.eps_clip, 1.0 + args.eps_clip_high)
    return -weight * advantages * log_probs, (weight != ratio).float()


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
    # Without a look at the values, for which the device would wait.
    sizes = torch.where(trained, difference.abs(), 0.0)
    largest = sizes.max() if sizes.numel() else difference.new_zeros(())
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
        corrected, kept, result = _custom(args, batch, losses)
        metrics |= {name: reduce(_flat(value)) for name, value in result.items()}
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


def with_entropy_bonus(loss: Tensor, entropy: Tensor, coef: float) -> Tensor:
    """Return ``loss - coef * entropy``, both already reduced.

    ``entropy`` is ``reduce(H_t)`` with ``H_t = - sum_v pi(v) log pi(v)`` over the vocabulary at token t (Williams and Peng,
    "Function Optimization Using Connectionist Reinforcement Learning Algorithms", 1991). The metric ``entropy_loss`` is
    this value: larger means more random.
    """
    return loss - coef * entropy if coef else loss


def kl_per_token(args: Arguments, log_probs: Tensor, old_log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Estimate the KL of the policy to the reference per token, as a loss term.

    ``--kl-loss-type`` selects the function of ``d = log pi(a_t) - log pi_ref(a_t)``
    (:func:`slime.utils.ppo_utils.compute_approx_kl`; Schulman, "Approximating KL Divergence", 2020; as a loss term: Shao et
    al., "DeepSeekMath", 2024, equation 4). ``--use-unbiased-kl`` weights it by ``pi / pi_old`` (DeepSeek-AI,
    "DeepSeek-V3.2", 2025).
    """
    ratio = bounded_ratio(log_probs - old_log_probs) if args.use_unbiased_kl else None
    return compute_approx_kl(log_probs, ref_log_probs, args.kl_loss_type, importance_ratio=ratio)


Surrogate = Callable[[Arguments, Sequence[Tensor], Sequence[Tensor], Tensor, Sequence[Tensor]], tuple[Tensor, Tensor]]

# Estimators with a surrogate other than PPO's clip.
SURROGATES: dict[str, Surrogate] = {"gspo": gspo_surrogate, "cispo": cispo_surrogate}


def policy_loss(
    args: Arguments, batch: TrainBatch, log_probs: list[Tensor], entropy: list[Tensor], reduce: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the reduced loss and its detached metrics, reduced the same way.

    Args:
        batch: per-sample lists of ``[R_i]``: ``log_probs`` (old), ``advantages``, ``loss_masks``, and if used
            ``ref_log_probs`` and ``rollout_log_probs``. Also ``total_lengths`` and ``response_lengths``.
        log_probs: new log probabilities with gradient, ``[R_i]`` per sample.
        entropy: ``[R_i]`` per sample.
    """
    new, old = torch.cat(log_probs), torch.cat(batch["log_probs"])
    advantages = torch.cat(batch["advantages"])
    if own := SURROGATES.get(args.advantage_estimator):
        losses, clip_fraction = own(args, log_probs, batch["log_probs"], advantages, batch["loss_masks"])
    else:
        clips = (args.eps_clip, args.eps_clip_high, args.eps_clip_c)
        losses, clip_fraction = compute_policy_loss(old - new, advantages, *clips)
    metrics = {"pg_clipfrac": reduce(clip_fraction), "ppo_kl": reduce((old - new).detach())}
    metrics["ois"] = reduce(bounded_ratio((new - old).detach()))
    if args.use_opsm:
        kept = off_policy_mask(log_probs, batch["log_probs"], batch["advantages"], batch["loss_masks"], args.opsm_delta)
        losses = losses * kept
        metrics["opsm_clipfrac"] = reduce(1.0 - kept)
    losses, masks, reduce, result = correct(args, batch, new, losses, reduce)
    metrics |= result
    pg_loss = policy_reducer(args, batch, masks, reduce)(losses)
    entropy_mean = reduce(torch.cat(entropy))
    loss = with_entropy_bonus(pg_loss, entropy_mean, args.entropy_coef)
    metrics |= {"pg_loss": pg_loss, "entropy_loss": entropy_mean}
    if args.use_kl_loss:
        kl = reduce(kl_per_token(args, new, old, torch.cat(batch["ref_log_probs"])))
        loss = loss + args.kl_loss_coef * kl
        metrics["kl_loss"] = kl
    metrics["loss"] = loss
    return loss, {name: value.detach() for name, value in metrics.items()}


def policy_loss_of_logits(
    args: Arguments, batch: TrainBatch, logits: Tensor | ResponseRows, reduce: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return :func:`policy_loss` from packed logits ``[1, T, V]`` or response rows, for custom losses."""
    return policy_loss(args, batch, *log_probs_and_entropies(args, batch, logits), reduce)


def log_probs_and_entropies(
    args: Arguments, batch: TrainBatch, logits: Tensor | ResponseRows
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the log probabilities and entropies, ``[R_i]`` per sample, that :func:`policy_loss` takes."""
    _, output = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        with_entropy=True,
    )
    return output["log_probs"], output["entropy"]
