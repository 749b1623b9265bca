"""Quantiles and slopes of measured values; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

Seconds = float


def quantile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that at least ``share`` of ``values`` do not exceed.

    Raises:
        ValueError: there are no values, or ``share`` is not above 0 and at most 1.
    """
    if not values or not 0 < share <= 1:
        raise ValueError(f"a quantile needs values and a share in (0, 1], not {len(values)} values and {share}")
    return sorted(values)[math.ceil(share * len(values)) - 1]


def milliseconds(values: Sequence[Seconds]) -> dict[str, float]:
    """Return median, 95th percentile and count of durations, in milliseconds."""
    return {
        "median": round(quantile(values, 0.5) * 1e3, 3),
        "p95": round(quantile(values, 0.95) * 1e3, 3),
        "count": len(values),
    }


def slope(times: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """Return the slope of the least-squares line and its standard error, in units of a value per unit of time.

    Raises:
        ValueError: fewer than three points, or all at one time.
    """
    count = len(times)
    if count < 3 or len(values) != count or len(set(times)) < 2:
        raise ValueError(f"a slope needs three points at different times, not {count}")
    middle, level = sum(times) / count, sum(values) / count
    spread = sum((time - middle) ** 2 for time in times)
    found = sum((time - middle) * (value - level) for time, value in zip(times, values, strict=True)) / spread
    rest = sum((value - level - found * (time - middle)) ** 2 for time, value in zip(times, values, strict=True))
    return found, math.sqrt(rest / (count - 2) / spread)
