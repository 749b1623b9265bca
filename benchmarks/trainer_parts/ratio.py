"""Which of two sides is faster, from steps that they took in turn, and whether that is more than noise."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any


def how_many_times_faster(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, Any]:
    """Compare the seconds of two sides round by round: a machine that is slow for a while is so for both.

    Returns:
        ``ratio``, the median over the rounds of their seconds over ours; ``middle_half``, the quartiles of the same; ``rounds``.
    """
    ratios = sorted(their / our for our, their in zip(ours, theirs, strict=True))
    low, _, high = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    return {
        "ratio": round(statistics.median(ratios), 2),
        "middle_half": [round(low, 2), round(high, 2)],
        "rounds": len(ratios),
    }


def against_goal(ours: dict[str, Any], theirs: dict[str, Any], goal: float) -> dict[str, Any]:
    """Return the comparison of two rows of the same batch, by the wall and by CPU time, and whether it reaches ``goal``.

    CPU time does not see other processes take turns on the cores, only how they share caches and memory. ``beyond_noise`` says
    that the middle half of the rounds lies on one side of the goal.
    """
    found = how_many_times_faster(ours["all_seconds"], theirs["all_seconds"])
    low, high = found["middle_half"]
    by_cpu = how_many_times_faster(ours["all_cpu_seconds"], theirs["all_cpu_seconds"])
    return {
        "against": theirs["side"],
        **found,
        "by_cpu_time": by_cpu["ratio"],
        "by_cpu_time_middle_half": by_cpu["middle_half"],
        "goal": goal,
        "met": found["ratio"] >= goal,
        "beyond_noise": low >= goal or high < goal,
    }
