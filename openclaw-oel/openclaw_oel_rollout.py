"""The rollout function of online experiential learning, under its name in launch scripts."""

from __future__ import annotations

from openclaw.training.live import LiveRollout

METHOD = "openclaw_oel_method.ExperientialLearning"
generate_rollout_openclaw_oel = LiveRollout(METHOD)
