"""Whether an issue is resolved, by the statuses of its tests: as swebench decides it.

A test that has to pass now (``FAIL_TO_PASS``) passed, or failed as it is expected to. Of one that passed before (``PASS_TO_PASS``), skipping is no
harm. A missing test has failed. Ids that data sets cut within their brackets stand for all tests that begin so, if these agree. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentrl.tasks.swe.logs import Statuses

GOOD = ("PASSED", "XFAIL")


@dataclass(frozen=True)
class Report:
    """The tests that are as they should be, and the others.

    Attributes:
        mended: of ``FAIL_TO_PASS``, those that pass.
        unmended: the others.
        kept: of ``PASS_TO_PASS``, those that are not worse.
        broken: the others.
    """

    mended: tuple[str, ...]
    unmended: tuple[str, ...]
    kept: tuple[str, ...]
    broken: tuple[str, ...]

    @property
    def resolved(self) -> bool:
        """Whether nothing is missing and nothing broken."""
        return not self.unmended and not self.broken

    def __str__(self) -> str:
        """Say in words what is missing, with a few names."""
        wanted, others = len(self.mended) + len(self.unmended), len(self.kept) + len(self.broken)
        text = f"{len(self.mended)} of {wanted} tests of the issue pass, {len(self.kept)} of {others} others still do"
        names = [*self.unmended, *self.broken][:3]
        return f"{text}; not {', '.join(names)}" if names else text


def report_of(statuses: Statuses, fail_to_pass: Sequence[str], pass_to_pass: Sequence[str]) -> Report:
    """Return what became of the tests."""

    def sorted_out(names: Sequence[str], good: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
        fine = [name for name in names if status_of(name, statuses) in good]
        return tuple(fine), tuple(name for name in names if name not in fine)

    mended, unmended = sorted_out(fail_to_pass, GOOD)
    kept, broken = sorted_out(pass_to_pass, (*GOOD, "SKIPPED"))
    return Report(mended, unmended, kept, broken)


def status_of(name: str, statuses: Statuses) -> str | None:
    """Return the status of a test, None if it did not run."""
    if name in statuses or name.count("[") <= name.count("]"):
        return statuses.get(name)
    found = [status for each, status in statuses.items() if each.startswith(name)]
    return found[0] if found and len({status in GOOD for status in found}) == 1 else None
