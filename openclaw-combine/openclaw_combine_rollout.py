"""The rollout function of Combine, under its name in launch scripts."""

from __future__ import annotations

from typing import Any

from openclaw.training.rollout import RolloutOutput, generate_rollout
from slime.args import Arguments

METHOD = "openclaw_combine_method.Combine"


def generate_rollout_openclaw_combine(
    args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutOutput:
    """Return a batch of turns with a score, a hint or both; see `openclaw.training.rollout.generate_rollout`."""
    return generate_rollout(args, rollout_id, data_source, evaluation, method_path=METHOD)
