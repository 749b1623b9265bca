"""The built-in policy loss: a sum of named terms.

``L = reduce(m_t w_t * surrogate_t) + kl_loss_coef * reduce(KL) - entropy_coef * reduce(H)``. The surrogate is PPO's clip or the
estimator's own. ``w_t`` are importance weights of trainer against engine, and ``m_t`` is OPSM's mask; both default to 1.
The loss reads per-token streams only and knows no method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from slime.algorithms.losses.correction import correct, off_policy_mask
from slime.algorithms.losses.reduce import Reducer, policy_reducer
from slime.algorithms.losses.surrogates import cispo_surrogate, gspo_surrogate
from slime.args import Arguments
from slime.logprobs.packed_logits import get_log_probs_and_entropy
from slime.logprobs.response_rows import ResponseRows
from slime.utils.ppo_utils import bounded_ratio, compute_approx_kl, compute_policy_loss
from slime.utils.streams import TrainBatch


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
    losses, masks, reduce, found = correct(args, batch, new, losses, reduce)
    metrics |= found
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
    _, output = get_log_probs_and_entropy(
        logits,
        args=args,
        unconcat_tokens=batch["unconcat_tokens"],
        total_lengths=batch["total_lengths"],
        response_lengths=batch["response_lengths"],
        with_entropy=True,
    )
    return policy_loss(args, batch, output["log_probs"], output["entropy"], reduce)
