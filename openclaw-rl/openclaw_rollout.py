"""The rollout function of Binary RL, under the name that launch scripts know."""

from __future__ import annotations

from openclaw.training.rollout import LiveRollout

METHOD = "openclaw_rl_method.BinaryRL"
generate_rollout_openclaw = LiveRollout(METHOD)
