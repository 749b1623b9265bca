"""A finding: what is wrong, how serious it is, the numbers that show it, and what to type."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    """How serious a finding is; the most serious one first."""

    STOPS = 0
    """The run learns nothing, or not any more."""
    LOSES = 1
    """Much of what people say is lost, or learned wrongly."""
    WATCH = 2
    """It works, but slowly or at a risk."""


@dataclass(frozen=True)
class Finding:
    """What is wrong.

    Attributes:
        name: of the check's finding.
        severity: how serious it is.
        title: what is wrong, one line.
        evidence: the numbers.
        remedy: what to do, or to type.
    """

    name: str
    severity: Severity
    title: str
    evidence: str
    remedy: str

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready values."""
        return {**asdict(self), "severity": self.severity.name.lower()}


def part(count: int, total: int) -> str:
    """Return ``count of total (share)``."""
    return f"{count} of {total} ({100 * count / max(1, total):.0f} %)"
