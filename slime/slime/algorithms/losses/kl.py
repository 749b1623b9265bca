"""KL of the policy to the reference policy as a loss term: ``kl_loss_coef * reduce(KL_t)``, estimated at each token.

``KL_t`` is a function of ``d = log pi(a_t) - log pi_ref(a_t)``, by ``--kl-loss-type`` (Schulman, "Approximating KL Divergence",
2020; as a loss term: Shao et al., "DeepSeekMath", 2024, equation 4): see :func:`slime.utils.ppo_utils.compute_approx_kl`.
With ``--use-unbiased-kl`` it is weighted by ``pi / pi_old`` (DeepSeek-AI, "DeepSeek-V3.2", 2025).
"""

from __future__ import annotations

from torch import Tensor

from slime.args import Arguments
from slime.utils.ppo_utils import compute_approx_kl


def kl_per_token(args: Arguments, log_probs: Tensor, old_log_probs: Tensor, ref_log_probs: Tensor) -> Tensor:
    """Return the estimate of ``args.kl_loss_type`` per token; ``use_unbiased_kl`` weighs it by ``pi / pi_old``."""
    ratio = (log_probs - old_log_probs).exp() if args.use_unbiased_kl else None
    return compute_approx_kl(log_probs, ref_log_probs, args.kl_loss_type, importance_ratio=ratio)
