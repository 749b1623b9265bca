"""The rollout function of SDPO, under its name in launch scripts."""

from __future__ import annotations

from openclaw.training.live import LiveRollout

METHOD = "openclaw_sdpo_method.SelfDistillation"
generate_rollout_openclaw_sdpo = LiveRollout(METHOD)
