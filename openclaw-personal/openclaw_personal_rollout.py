"""The rollout function of personal learning, under its name in launch scripts."""

from __future__ import annotations

from openclaw.training.live import LiveRollout

METHOD = "openclaw_personal_method.Personal"
generate_rollout_openclaw_personal = LiveRollout(METHOD)
