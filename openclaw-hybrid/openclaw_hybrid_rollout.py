"""The rollout function of Hybrid, under its name in launch scripts."""

from __future__ import annotations

from openclaw.training.live import LiveRollout

METHOD = "openclaw_hybrid_method.Hybrid"
generate_rollout_openclaw_hybrid = LiveRollout(METHOD)
