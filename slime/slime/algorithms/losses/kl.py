"""KL of the policy to the reference policy as a loss term: ``coef * KL(pi || pi_ref)``, estimated per token."""

from __future__ import annotations

from argparse import Namespace

from torch import Tensor

from slime.utils.ppo_utils import compute_approx_kl


def kl_per_token(args: Namespace, log_probs: Tensor, old_log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Return the estimate of ``args.kl_loss_type`` per token; ``use_unbiased_kl`` weighs it by ``pi / pi_old``."""
    ratio = (log_probs - old_log_probs).exp() if args.use_unbiased_kl else None
    return compute_approx_kl(log_probs, ref_log_probs, args.kl_loss_type, importance_ratio=ratio)
