"""The Combine loss as a custom loss function, for ``--loss-type custom_loss``.

    A[k] = advantage[k] + w_opd * clip(log pi_T(a[k]) - log pi_old(a[k]), -C, C)
    loss = PPO clip(log pi - log pi_old, A) + kl_loss_coef * KL(pi, pi_ref) - entropy_coef * entropy

Guarantees: the same loss and gradient as the built-in loss with ``--use-opd --opd-kl-coef w_opd``; use only one of them.
``advantage`` comes from the estimator: for GRPO without normalisation, the sample's reward, which includes ``w_rl``.
``w_opd`` is ``OPENCLAW_COMBINE_W_OPD``, and ``C`` is ``--opd-clip``. A sample without teacher log-probabilities has only the first term.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from openclaw_combine_method import Config

from slime.algorithms.advantages import teacher_terms
from slime.algorithms.losses.custom import from_response_rows
from slime.algorithms.losses.policy_loss import policy_loss_of_logits
from slime.args import Arguments
from slime.utils.streams import TrainBatch


@cache
def own_config() -> Config:
    """Return the method's variables, read once per process."""
    return Config.from_env()


@from_response_rows
def combine_loss_function(
    args: Arguments, batch: TrainBatch, logits: Any, sum_of_sample_mean: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the loss of a micro-batch and its detached metrics.

    Args:
        args: of the run.
        batch: per-sample lists of 1-D tensors over response tokens; ``teacher_log_probs`` may hold None.
        logits: of the micro-batch, ``[1, T, V]``, or its response rows.
        sum_of_sample_mean: reduces one value per response token of the micro-batch to the sum of sample means.
    """
    if args.use_opd:
        raise ValueError(
            "--use-opd already adds the distillation term of combine_loss; drop --use-opd or --loss-type custom_loss"
        )
    if args.use_tis:
        raise ValueError("--use-tis has no effect with combine_loss; drop --use-tis or --loss-type custom_loss")
    terms = teacher_terms(batch, args.opd_clip)
    distances = [
        torch.zeros_like(old) if term is None else term for term, old in zip(terms, batch["log_probs"], strict=True)
    ]
    weight = own_config().w_opd
    advantages = [a + weight * d for a, d in zip(batch["advantages"], distances, strict=True)]
    loss, metrics = policy_loss_of_logits(args, {**batch, "advantages": advantages}, logits, sum_of_sample_mean)
    return loss, {**metrics, "opd_reverse_kl": sum_of_sample_mean(-torch.cat(distances)).detach()}
