"""The rollout function of the distillation of every turn."""

from __future__ import annotations

from openclaw.training.live import LiveRollout

generate_rollout_every_turn = LiveRollout("every_turn_method.EveryTurn")
