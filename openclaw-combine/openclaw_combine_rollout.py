"""The rollout function of Combine, under the name that launch scripts know."""

from __future__ import annotations

from openclaw.training.rollout import LiveRollout

METHOD = "openclaw_combine_method.Combine"
generate_rollout_openclaw_combine = LiveRollout(METHOD)
