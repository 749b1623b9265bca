"""The teacher's term on top of any estimator: ``A_t += coef * (log pi_teacher(a_t) - log pi_old(a_t))``.

A sample without a teacher keeps its advantage. This is the combination of reward and on-policy distillation (OpenClaw-RL,
arXiv 2603.10165, ``A_t = w_rl r + w_opd (log pi_T - log pi_old)``).
"""

from __future__ import annotations

from typing import Any

from torch import Tensor


def add_opd_term(advantages: list[Tensor], rollout: dict[str, Any], coef: float) -> list[Tensor]:
    """Return new advantages ``[R_i]``; reads ``teacher_log_probs`` (list, entries may be None) and ``log_probs``."""
    teacher = rollout.get("teacher_log_probs")
    if teacher is None:
        return list(advantages)
    return [
        a if t is None else a + coef * (t - old)
        for a, t, old in zip(advantages, teacher, rollout["log_probs"], strict=True)
    ]
