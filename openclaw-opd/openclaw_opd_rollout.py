"""The rollout function of on-policy distillation, under its name in launch scripts."""

from __future__ import annotations

from openclaw.training.live import LiveRollout

METHOD = "openclaw_opd_method.OnPolicyDistillation"
generate_rollout_openclaw_opd = LiveRollout(METHOD)
