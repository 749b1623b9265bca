"""``generate`` and ``reward_func`` of on-policy distillation, under the names that launch scripts know.

They serve evaluation on data sets; live conversations go through `openclaw_opd_rollout`.
"""

from __future__ import annotations

from openclaw.training.evaluation import generate, judge_reward

reward_func = judge_reward

__all__ = ["generate", "reward_func"]
