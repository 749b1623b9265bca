"""The rollout function of Combine, under its name in launch scripts."""

from __future__ import annotations

from openclaw.training.live import LiveRollout

METHOD = "openclaw_combine_method.Combine"
generate_rollout_openclaw_combine = LiveRollout(METHOD)
