"""Checks of the processes and the disk of a run; `scripts/setup.sh doctor` checks the machine itself."""

from __future__ import annotations

from collections.abc import Iterator

from openclaw.doctor.finding import Finding, Severity
from openclaw.doctor.look import Look

MIN_DISK = 2 * 2**30
MIN_SHARE = 0.02
MANY_RESTARTS = 3


def restarts(look: Look) -> Iterator[Finding]:
    """Find a runtime process that died or froze."""
    counted = list(look.series.get("openclaw/runtime_restarts", {}).values())
    frozen = list(look.series.get("openclaw/runtime_frozen", {}).values())
    count = max(look.restarts, int(counted[-1]) if counted else 0)
    if count:
        yield Finding(
            "restarts",
            Severity.LOSES if count >= MANY_RESTARTS else Severity.WATCH,
            "the runtime process had to be restarted",
            f"{count} restarts by the newest driver, {int(frozen[-1]) if frozen else 0} of them of a frozen process",
            "logs/processes.log and runtime.log name the reason and the requests that were under way",
        )


def disk(look: Look) -> Iterator[Finding]:
    """Find a disk that is nearly full."""
    free, total = look.disk.free, look.disk.total
    if free < MIN_DISK or free < MIN_SHARE * total:
        yield Finding(
            "disk",
            Severity.LOSES,
            "the disk is nearly full; without space nothing can be recorded or saved",
            f"{free / 2**30:.1f} of {total / 2**30:.0f} GiB are free where the ledger is",
            "delete old checkpoints, set OPENCLAW_RETENTION_DAYS, or move the run to a larger disk",
        )
