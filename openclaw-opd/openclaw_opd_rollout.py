"""The rollout function of on-policy distillation, under its name in launch scripts."""

from __future__ import annotations

from typing import Any

from openclaw.training.rollout import RolloutOutput, generate_rollout
from slime.args import Arguments

METHOD = "openclaw_opd_method.OnPolicyDistillation"


def generate_rollout_openclaw_opd(
    args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutOutput:
    """Return a batch of turns with a hint; see `openclaw.training.rollout.generate_rollout`."""
    return generate_rollout(args, rollout_id, data_source, evaluation, method_path=METHOD)
