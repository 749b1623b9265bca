"""All checks of a run, and the order of what they find."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from openclaw.doctor import capturing, judging, machine, training
from openclaw.doctor.finding import Finding, Severity
from openclaw.doctor.look import Disk, Look, look, real_disk
from openclaw.runs.folder import RunFolder

CHECKS: tuple[Callable[[Look], Iterator[Finding]], ...] = (
    training.paused,
    training.gate_refuses,
    judging.unreachable,
    capturing.no_turns,
    capturing.side_turns,
    capturing.evaluation,
    capturing.no_next_state,
    capturing.sampling,
    capturing.redacted,
    judging.abstains,
    capturing.other_reasons,
    training.stale,
    training.mismatch,
    machine.disk,
    machine.restarts,
    judging.backlog,
    judging.no_teacher,
    judging.no_hints,
    judging.neutral,
    judging.one_way,
    judging.disagree,
    training.slow_batches,
    training.no_samples,
)
"""Among findings of equal severity the order here decides."""
CONSEQUENCE = "no_samples"
"""A finding that another one explains, if that stops the run."""


def diagnose(run: RunFolder, disk: Callable[[Path], Disk] = real_disk) -> list[Finding]:
    """Return what is wrong with a run, the most serious first; nothing if it is healthy.

    Raises:
        LedgerError: the ledger cannot be read.
    """
    seen = look(run, disk)
    findings = [finding for check in CHECKS for finding in check(seen)]
    if any(item.severity is Severity.STOPS and item.name != CONSEQUENCE for item in findings):
        findings = [item for item in findings if item.name != CONSEQUENCE]
    return sorted(findings, key=lambda finding: finding.severity)
