"""Advantages of a rollout: one estimator by name, then the terms that are orthogonal to it.

A new estimator is a function ``(args, rollout) -> list of [R_i]`` and a line in :data:`ESTIMATORS`. ``rollout``
maps names to per-sample lists: ``rewards``, ``response_lengths``, ``loss_masks``, ``log_probs`` (the old policy), ``kl`` (of
the old policy to the reference), ``values`` (of a critic), ``teacher_log_probs``, ... gspo and cispo have GRPO's advantages;
they differ in the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from slime.algorithms.advantages.estimators import (
    custom_advantages,
    grpo,
    on_policy_distillation,
    ppo,
    reinforce_plus_plus,
    reinforce_plus_plus_baseline,
    step_wise,
)
from slime.algorithms.advantages.returns import reference_kl
from slime.algorithms.advantages.terms import SumOverRanks, add_opd_term, on_one_rank, whiten
from slime.args import Arguments
from slime.utils.misc import load_function

Estimator = Callable[[Arguments, dict[str, Any]], list[Tensor]]

ESTIMATORS: dict[str, Estimator] = {
    "grpo": grpo,
    "gspo": grpo,
    "cispo": grpo,
    "ppo": ppo,
    "reinforce_plus_plus": reinforce_plus_plus,
    "reinforce_plus_plus_baseline": reinforce_plus_plus_baseline,
    "step_wise": step_wise,
    "on_policy_distillation": on_policy_distillation,
}


def compute_advantages(
    args: Arguments, rollout: dict[str, Any], sum_over_ranks: SumOverRanks = on_one_rank
) -> tuple[list[Tensor], list[Tensor]]:
    """Return the advantages and the returns ``[R_i]`` of every sample of ``rollout``, and set ``rollout["kl"]``.

    The returns are the estimator's advantages, plus the critic's ``values`` where there are any. The advantages then have the
    teacher's term of ``--use-opd`` added, and the whitening of ``--normalize-advantages``, for which all ranks must call this
    together.
    """
    rollout["kl"] = reference_kl(args, rollout)
    if args.custom_advantage_function_path:
        advantages, returns = custom_advantages(load_function(args.custom_advantage_function_path), args, rollout)
    else:
        estimator = ESTIMATORS.get(args.advantage_estimator)
        if estimator is None:
            known = ", ".join(sorted(ESTIMATORS))
            raise ValueError(f"--advantage-estimator {args.advantage_estimator!r} is not one of: {known}")
        advantages = returns = estimator(args, rollout)
        if rollout.get("values") is not None:
            returns = [advantage + value for advantage, value in zip(advantages, rollout["values"], strict=True)]
    if args.use_opd:
        advantages = add_opd_term(advantages, rollout, args.opd_kl_coef)
    if args.normalize_advantages:
        advantages = whiten(advantages, rollout["loss_masks"], sum_over_ranks)
    return advantages, returns
