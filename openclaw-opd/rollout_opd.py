"""The rollout function of on-policy distillation, under its name in guides."""

from openclaw_opd_rollout import generate_rollout_openclaw_opd as generate_rollout

__all__ = ["generate_rollout"]
