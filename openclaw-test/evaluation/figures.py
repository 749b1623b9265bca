"""Figures of an evaluation: shares with intervals, and paired differences of two models.

The unit is the problem. Several tries of one problem are averaged first, because they are not independent.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from statistics import NormalDist
from typing import Any

from intervals import wilson

from evaluation.records import Record

ALL = "all"
Figures = dict[str, Any]


def by_problem(records: Iterable[Record]) -> dict[str, float]:
    """Return the share of passed tries per problem."""
    tries: dict[str, list[bool]] = defaultdict(list)
    for record in records:
        tries[record.task].append(record.passed)
    return {task: sum(passed) / len(passed) for task, passed in tries.items()}


def suite_figures(records: Sequence[Record]) -> Figures:
    """Return the figures of some records, at least one.

    The interval is Wilson's with the number of problems, whatever the number of tries. A mean of several tries varies at most
    as much as one try, so the interval is not too narrow.
    """
    shares = by_problem(records)
    low, high = wilson(math.fsum(shares.values()), len(shares))
    seconds = sorted(record.seconds for record in records)
    waited = math.fsum(seconds)
    return {
        "problems": len(shares),
        "tries": len(records),
        "passed": sum(record.passed for record in records),
        "score": round(statistics.fmean(shares.values()), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "degenerate": round(sum(record.degenerate for record in records) / len(records), 4),
        "malformed_calls": sum(record.malformed_calls for record in records),
        "seconds_median": round(statistics.median(seconds), 3),
        "seconds_p95": round(seconds[math.ceil(0.95 * len(seconds)) - 1], 3),
        "tokens": sum(record.tokens for record in records),
        "tokens_per_second": round(sum(record.tokens for record in records) / waited, 1) if waited else None,
        "failures": dict(Counter(record.reason for record in records if not record.passed).most_common()),
    }


def grouped(records: Iterable[Record], key: str) -> dict[str, list[Record]]:
    """Return the records by one of their fields, in the order of their appearance."""
    groups: dict[str, list[Record]] = defaultdict(list)
    for record in records:
        groups[str(getattr(record, key))].append(record)
    return dict(groups)


def paired_difference(differences: Sequence[float], level: float = 0.95) -> tuple[float, float, float]:
    """Return the mean of paired differences, each from -1 to 1, and an interval around it.

    The interval is the adjusted Wald interval of Bonett and Price (2012, https://doi.org/10.3102/1076998611411915). It adds one
    difference of 1 and one of -1, and takes ``d ± z * sqrt((mean of squares - d²) / (n + 2))`` of all ``n + 2``, with ``d`` their
    mean. For passed (1) or not (0) this is their formula with ``(n12 + 1) / (n + 2)`` and ``(n21 + 1) / (n + 2)``; means of several
    tries enter as they are. No differences at all give an interval that is not a point.

    Raises:
        ValueError: without differences.
    """
    if not differences:
        raise ValueError("paired_difference: give at least one difference")
    n = len(differences) + 2
    center = math.fsum(differences) / n
    spread = math.fsum([*(difference * difference for difference in differences), 2.0]) / n - center * center
    margin = NormalDist().inv_cdf((1 + level) / 2) * math.sqrt(spread / n)
    return statistics.fmean(differences), max(-1.0, center - margin), min(1.0, center + margin)


def mcnemar(gained: int, lost: int) -> float:
    """Return the two-sided p value of McNemar's exact test: is one change as likely as the other?

    With ``n = gained + lost`` it is ``min(1, 2 * P(X <= min(gained, lost)))`` for X binomial with n trials of 1/2 (McNemar 1947,
    https://doi.org/10.1007/BF02295996).
    """
    changes = gained + lost
    tail = sum(math.comb(changes, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**changes)


def comparison(this: Sequence[Record], other: Sequence[Record]) -> Figures | None:
    """Return the paired figures of two models on the problems that both have; None without such problems.

    ``difference`` is this model's score minus the other one's. ``gained`` and ``lost`` count problems with a larger or smaller
    share of passed tries. The p value is given for one try per problem only.
    """
    mine, theirs = by_problem(this), by_problem(other)
    common = [task for task in mine if task in theirs]
    if not common:
        return None
    differences = [mine[task] - theirs[task] for task in common]
    mean, low, high = paired_difference(differences)
    gained, lost = sum(difference > 0 for difference in differences), sum(difference < 0 for difference in differences)
    single = all(abs(item) in (0.0, 1.0) for item in [*mine.values(), *theirs.values()])
    return {
        "problems": len(common),
        "this": round(statistics.fmean(mine[task] for task in common), 4),
        "other": round(statistics.fmean(theirs[task] for task in common), 4),
        "difference": round(mean, 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "gained": gained,
        "lost": lost,
        "p": round(mcnemar(gained, lost), 4) if single else None,
    }


def comparisons(this: Sequence[Record], other: Sequence[Record]) -> dict[str, Figures]:
    """Return the paired figures per suite, and of all suites together."""
    theirs = grouped(other, "suite")
    results = {name: comparison(mine, theirs.get(name, [])) for name, mine in grouped(this, "suite").items()}
    results[ALL] = comparison(this, other)
    return {name: figures for name, figures in results.items() if figures is not None}
