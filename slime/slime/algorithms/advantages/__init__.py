"""Compute a rollout's advantages: an estimator, then terms that work with every one.

To add an estimator, write a function ``(args, rollout) -> list of [R_i]`` and add a line to :data:`ESTIMATORS`.
``rollout`` maps names to per-sample lists, among them:

* ``rewards``, ``response_lengths``, ``loss_masks``, ``teacher_log_probs``
* ``log_probs`` of the old policy, ``kl`` of the old policy to the reference
* ``values`` of the critic

gspo and cispo use GRPO's advantages and differ in the loss.
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
    """Return each sample's advantages and returns ``[R_i]``, and set ``rollout["kl"]``.

    The returns are the estimator's advantages, plus the critic's ``values`` if there is a critic. ``--use-opd`` then adds the
    teacher's term to the advantages, and ``--normalize-advantages`` whitens them. Whitening is collective over the ranks.
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
        advantages = add_opd_term(advantages, rollout, args.opd_kl_coef, args.opd_clip)
    if args.normalize_advantages:
        advantages = whiten(advantages, rollout["loss_masks"], sum_over_ranks)
    return advantages, returns
