"""What one run measures: its sizes, and its record's fields that must agree before runs are compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

BASE = "base"
"""The method that trains nothing: the users' conversations are side turns."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run.

    Attributes:
        most_sessions: sessions of each user, one after the other, in which the rule may come to be followed.
        score_after: numbers of updates after which first replies to held-out problems are scored, ascending.
        heldout: held-out problems of a score, for each user.
        more_sessions: sessions, several at a time, that may follow until the last score; OPD runs out of complaints.
        parallel: conversations at a time in these.
    """

    most_sessions: int = 30
    score_after: tuple[int, ...] = (8, 16)
    heldout: int = 64
    more_sessions: int = 400
    parallel: int = 8

    def __post_init__(self) -> None:
        """Check the sizes.

        Raises:
            ValueError: says what to type.
        """
        if min(self.most_sessions, self.heldout, self.parallel) < 1 or self.more_sessions < 0:
            raise ValueError("sessions, problems and parallel conversations must be 1 or more")
        if list(self.score_after) != sorted(set(self.score_after)) or min(self.score_after, default=1) < 1:
            raise ValueError(f"score after {list(self.score_after)}: give ascending numbers of updates, such as 8,16")

    def as_record(self) -> dict[str, Any]:
        """Return the sizes as JSON has them."""
        return {**asdict(self), "score_after": list(self.score_after)}
