"""The rollout function of Binary RL, under its name in launch scripts."""

from __future__ import annotations

from openclaw.training.live import LiveRollout

METHOD = "openclaw_rl_method.BinaryRL"
generate_rollout_openclaw = LiveRollout(METHOD)
