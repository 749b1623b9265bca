"""``generate`` and ``reward_func`` of Hybrid, under their names in launch scripts.

They evaluate on data sets; live conversations use `openclaw_hybrid_rollout`.
"""

from __future__ import annotations

from openclaw.training.evaluation import generate, judge_reward

reward_func = judge_reward

__all__ = ["generate", "reward_func"]
