"""The measure of the paper's second version: how many sessions until the model follows a user's rule."""

from __future__ import annotations

from collections.abc import Sequence

STREAK = 3
"""Consecutive sessions whose first replies must follow the rule (OpenClaw-RL, arXiv 2603.10165v2)."""


def sessions_to_follow(liked: Sequence[bool], streak: int = STREAK) -> int | None:
    """Return the number of sessions up to and including the first ``streak`` in a row whose first replies were liked.

    Args:
        liked: for each session of one user, in order, whether its first reply followed the rule.
        streak: sessions in a row.

    Returns:
        At least ``streak``; None if it did not happen within the sessions that were held.
    """
    in_a_row = 0
    for held, good in enumerate(liked, start=1):
        in_a_row = in_a_row + 1 if good else 0
        if in_a_row == streak:
            return held
    return None
