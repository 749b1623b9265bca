"""Fuses: bounds on a run's metrics. A metric beyond its bound holds back the step that would learn from it.

A fuse is ``METRIC>NUMBER`` or ``METRIC<NUMBER``, such as ``train/ppo_kl>0.5``. Guarantees: a value that is not a number
blows every fuse of its metric. Pure functions, without torch, so that trainer, driver and command line agree.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

FUSE = re.compile(r"(?P<metric>[\w./@-]+)(?P<sign>[<>])(?P<limit>[^<>]+)")
OF_THE_LOSS = "train/"
"""The prefix of metrics that the trainer knows before a step; the driver knows all others before it asks the trainer."""
AFTER_THE_STEP = frozenset({"train/grad_norm", "train/lr-pg_0", "train/skipped_steps"})


class Fuse(NamedTuple):
    """A bound on a metric: the largest value if ``above``, else the smallest.

    Example:
        >>> fuse = read_fuse("train/ppo_kl>0.5")
        >>> fuse.blows(0.4), fuse.blows(float("nan"))
        (False, True)
        >>> print(blown(["train/ppo_kl>0.5"], {"train/ppo_kl": 0.75}))
        train/ppo_kl>0.5 (it is 0.75)
    """

    metric: str
    above: bool
    limit: float

    def __str__(self) -> str:
        return f"{self.metric}{'>' if self.above else '<'}{self.limit:g}"

    def blows(self, value: float) -> bool:
        """Return whether ``value`` is beyond the bound."""
        return not (value <= self.limit if self.above else value >= self.limit)


class Blown(NamedTuple):
    """A fuse and the value that blew it."""

    fuse: Fuse
    value: float

    def __str__(self) -> str:
        return f"{self.fuse} (it is {self.value:.4g})"


def read_fuse(text: str) -> Fuse:
    """Return the fuse that ``text`` writes.

    Raises:
        ValueError: it writes none.
    """
    match = FUSE.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a fuse; write METRIC>NUMBER or METRIC<NUMBER, such as train/ppo_kl>0.5")
    try:
        limit = float(match["limit"])
    except ValueError:
        limit = math.nan
    if not math.isfinite(limit):
        raise ValueError(f"{text!r}: {match['limit']!r} is not a number; write a bound such as train/ppo_kl>0.5")
    return Fuse(match["metric"], match["sign"] == ">", limit)


def blown(fuses: Sequence[str] | None, metrics: Mapping[str, float]) -> Blown | None:
    """Return the first fuse that ``metrics`` blow, or None; a metric that is missing blows nothing."""
    for fuse in map(read_fuse, fuses or ()):
        if fuse.metric in metrics and fuse.blows(value := float(metrics[fuse.metric])):
            return Blown(fuse, value)
    return None
