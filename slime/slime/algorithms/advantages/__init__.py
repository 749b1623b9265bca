"""Advantages of a rollout: one estimator by name, then the terms that are orthogonal to it.

A new estimator is a file with a function ``(args, rollout) -> list of [R_i]`` and a line in :data:`ESTIMATORS`. ``rollout``
maps names to per-sample lists: ``rewards``, ``response_lengths``, ``log_probs`` (the old policy), ``teacher_log_probs``, ...
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from torch import Tensor

from slime.algorithms.advantages.grpo import grpo
from slime.algorithms.advantages.on_policy_distillation import on_policy_distillation
from slime.algorithms.advantages.opd_term import add_opd_term

Estimator = Callable[[Namespace, dict[str, Any]], list[Tensor]]

ESTIMATORS: dict[str, Estimator] = {"grpo": grpo, "on_policy_distillation": on_policy_distillation}


def compute_advantages(args: Namespace, rollout: dict[str, Any]) -> list[Tensor]:
    """Return the advantages ``[R_i]`` of every sample of ``rollout``.

    Reads ``args.advantage_estimator``, ``args.use_opd`` and ``args.opd_kl_coef``.
    """
    estimator = ESTIMATORS.get(args.advantage_estimator)
    if estimator is None:
        known = ", ".join(sorted(ESTIMATORS))
        raise ValueError(f"--advantage-estimator {args.advantage_estimator!r} is not one of: {known}")
    advantages = estimator(args, rollout)
    if args.use_opd:
        advantages = add_opd_term(advantages, rollout, args.opd_kl_coef)
    return advantages
