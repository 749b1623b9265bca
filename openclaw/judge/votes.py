"""Takes the majority of votes.

Guarantees: a majority needs a quorum (`has_quorum`): with fewer valid votes there is no score at all, which is not the
same as 0. A tie and a majority below the threshold give 0. Pure functions.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

from openclaw.ledger.records import Vote


def has_quorum(votes: Sequence[Vote], share: float) -> bool:
    """Return whether at least ``share`` of the votes, and at least one, are valid; True if none was asked for."""
    valid = sum(vote.value is not None for vote in votes)
    return not votes or valid >= max(1, math.ceil(share * len(votes)))


def majority(values: Iterable[int | None], threshold: float) -> int:
    """Return the most frequent valid vote if its share reaches ``threshold``, otherwise 0.

    Args:
        values: the votes; None is an invalid vote and does not count.
        threshold: least share of the valid votes, in (0, 1].

    Returns:
        -1, 0 or 1; 0 for a tie, a smaller share or no valid vote.
    """
    counts = Counter(value for value in values if value is not None)
    if not counts:
        return 0
    ranked = counts.most_common(2)
    if len(ranked) == 2 and ranked[0][1] == ranked[1][1]:
        return 0
    value, count = ranked[0]
    return value if count / counts.total() >= threshold else 0


def agreement(values: Sequence[int | None]) -> float:
    """Return the share of the most frequent valid value among all votes; 0 without a valid vote."""
    counts = Counter(value for value in values if value is not None)
    return counts.most_common(1)[0][1] / len(values) if counts else 0.0
