"""What happened in a run of `benchmarks.gate_live`, and which of its claims held."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

MAX_FALL, MIN_RISE = 0.05, 0.2


@dataclass
class Told:
    """What happened, batch by batch."""

    rows: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    offered_after: int | None = None
    accepted: str | None = None

    def liked(self, *parts: str) -> list[float]:
        """Return the held-out shares after the batches of some parts."""
        return [row["liked"] for row in self.rows if row["part"] in parts]

    def healthy_enough(self, share: float) -> bool:
        """Whether the last batch left that share of liked replies, and the gate had probes enough to compare opinions."""
        return bool(self.rows) and self.rows[-1]["liked"] >= share and "gate/margin" in self.rows[-1]

    def refused(self, part: str) -> int:
        """Return the number of refusals of a part."""
        return sum(row["kind"] == "refused" for row in self.rows if row["part"] == part)


def claims(told: Told) -> dict[str, bool | None]:
    """Return which of the three claims held; None: this run did not get as far."""
    last = told.liked("healthy")[-1]
    during = told.liked("flipped", "again")
    changed, after = told.liked("changed"), told.liked("after")
    return {
        "fell_by_at_most_0.05": round(last - min(during), 4) <= MAX_FALL if during else None,
        "refused_flipped_verdicts": told.refused("flipped") + told.refused("changed") > 0 if during else None,
        "followed_after_acceptance": round(changed[-1] - after[-1], 4) >= MIN_RISE if after else None,
    }


def summarise(told: Told) -> dict[str, Any]:
    """Return the figures that people compare."""
    before, during = told.liked("healthy"), told.liked("flipped", "again")
    changed, after = told.liked("changed"), told.liked("after")
    decided = [row["gate/seconds"] for row in told.rows if "gate/seconds" in row]
    return {
        "liked_first": before[0],
        "best_before": max(before),
        "last_before": before[-1],
        "lowest_while_flipped": min(during),
        "fall_from_last": round(before[-1] - min(during), 4),
        "fall_from_best": round(max(before) - min(during), 4),
        "refused": {part: told.refused(part) for part in ("healthy", "flipped", "again", "changed", "after")},
        "lowest_before_acceptance": min(changed, default=None),
        "offered_after_batches": told.offered_after,
        "accepted": told.accepted,
        "new_taste_at_acceptance": round(1 - changed[-1], 4) if after else None,
        "new_taste_at_end": round(1 - after[-1], 4) if after else None,
        "claims": claims(told),
        "gate_seconds_median": sorted(decided)[len(decided) // 2] if decided else None,
        "gate_seconds_most": max(decided, default=None),
    }
