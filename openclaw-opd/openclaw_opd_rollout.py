"""The rollout function of on-policy distillation, under the name that launch scripts know."""

from __future__ import annotations

from openclaw.training.rollout import LiveRollout

METHOD = "openclaw_opd_method.OnPolicyDistillation"
generate_rollout_openclaw_opd = LiveRollout(METHOD)
