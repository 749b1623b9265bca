"""The rollout function of Binary RL, under its name in guides."""

from openclaw_rollout import generate_rollout_openclaw as generate_rollout

__all__ = ["generate_rollout"]
