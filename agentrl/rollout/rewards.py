"""From a verdict and the scores of steps to rewards. Pure.

With the outcome ``o``, the scores ``s_t`` of the scored steps and the coefficient ``c``: a trajectory's reward is
``R = o + c * mean(s_t)`` (`slime.rollout.rewards.trajectory_reward`), a step's ``r_t = o * gamma^(T-1-t) + c * s_t``.

Guarantees: a step without a valid vote has no score, and its term is missing rather than 0. A verdict without a score has no
outcome, so it cannot be rewarded.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from agentrl.protocol import Verdict
from agentrl.rollout.exceptions import EpisodeLost
from groundwork.exceptions import ConfigError

Mode = Literal["binary", "partial", "raw"]
VALID_VOTES = (-1, 1)


def outcome(verdict: Verdict, mode: Mode) -> float:
    """Return the outcome: 1 or -1 by whether the score is at least 1, or ``2f - 1`` of a score from 0 to 1, or the score.

    Raises:
        EpisodeLost: the verdict has no score.
        ConfigError: the mode cannot read the environment's scores.
    """
    score = verdict.score
    if score is None:
        raise EpisodeLost("verdict", f"the verdict is {verdict.status} without a score: {verdict.detail}")
    if mode == "raw":
        return score
    if mode == "binary":
        return 1.0 if score >= 1 else -1.0
    if not 0 <= score <= 1:
        raise ConfigError(
            f"AGENTRL_REWARD=partial takes scores from 0 to 1, but the environment's is {score:g}; use AGENTRL_REWARD=raw"
        )
    return 2 * score - 1


def step_score(votes: Sequence[int | None]) -> float | None:
    """Return the mean of the valid votes, -1 and 1; None without one."""
    valid = [vote for vote in votes if vote in VALID_VOTES]
    return statistics.fmean(vote for vote in valid if vote is not None) if valid else None


def step_rewards(result: float, scores: Sequence[float | None], coefficient: float, gamma: float) -> list[float]:
    """Return the reward of each step from the outcome and the scores of all steps, in order."""
    last = len(scores) - 1
    return [
        result * gamma ** (last - step) + (0.0 if score is None else coefficient * score)
        for step, score in enumerate(scores)
    ]
