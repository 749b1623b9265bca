"""On-policy distillation: the advantage of a token is how much more the teacher likes it than the sampling policy.

``A_t = log pi_teacher(a_t) - log pi_old(a_t)``: the policy gradient of the reverse KL to the teacher (Agarwal et al. 2024;
Lu, "On-Policy Distillation", 2025). The teacher may be the same model with a hint in its prompt.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from slime.args import Arguments


def on_policy_distillation(args: Arguments, rollout: dict[str, Any]) -> list[Tensor]:
    """Return ``[R_i]`` per sample from ``teacher_log_probs`` and ``log_probs``; every sample needs a teacher."""
    teacher = rollout.get("teacher_log_probs")
    if teacher is None or any(values is None for values in teacher):
        missing = "all samples" if teacher is None else str([i for i, values in enumerate(teacher) if values is None])
        raise ValueError(
            f"--advantage-estimator on_policy_distillation needs teacher_log_probs, which are missing on {missing}; "
            "for samples with and without a teacher use --advantage-estimator grpo --use-opd"
        )
    return [t - old for t, old in zip(teacher, rollout["log_probs"], strict=True)]
