"""The memory a run needs on each GPU, from its arguments and the model's shape alone; imports neither torch nor Ray."""

from __future__ import annotations

from slime.arguments.memory_budget.budget import Budget, budget_of, memory_problems

__all__ = ["Budget", "budget_of", "memory_problems"]
