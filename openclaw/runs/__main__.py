"""``openclaw-rl runs``, also ``python -m openclaw.runs``: the runs of this machine, the newest first."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence

from groundwork.command_line import CommandLine
from openclaw.launch.methods import demo_command
from openclaw.runtime.where import NEWEST, RUNS, all_runs, find_ledger, last_change, shown_path

AGES = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def age(seconds: float) -> str:
    """Return a time in its largest unit: ``3 h``."""
    size, unit = next((item for item in AGES if seconds >= item[0]), AGES[-1])
    return f"{max(0, int(seconds // size))} {unit}"


def main(argv: Sequence[str] | None = None) -> int:
    """Print a line per run; return the exit code: 2, with one line, if there is none."""
    parser = CommandLine(
        prog="openclaw-rl runs",
        description="List the runs in runs/, the newest first: when each last wrote, and what it holds.",
        epilog=f"Commands about a run take the word {NEWEST} for the first one with a ledger: openclaw-rl report {NEWEST}",
    )
    parser.parse_args(argv)
    runs = all_runs()
    if not runs:
        print(
            f"there is no run in {shown_path(RUNS)} yet; start one: {demo_command()}",
            file=sys.stderr,
        )
        return 2
    now = time.time()
    for run in runs:
        what = "conversations" if find_ledger(run) else "no ledger"
        print(f"{age(now - last_change(run)):>6} ago  {what:<13}  {shown_path(run)}")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `runs | head` ends quietly
    sys.exit(main())
