"""``openclaw-rl resume RUN``: let a run train again that a fuse has paused (`slime.utils.fuses`).

Guarantees: a running run goes on within seconds, without a restart; one that is down goes on when it is resumed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from groundwork.command_line import CommandLine
from groundwork.paused import resume
from openclaw.runtime.where import add_run


def main(argv: Sequence[str] | None = None) -> int:
    """Remove the note of the pause; return the exit code: 2, with one line, if there is none."""
    parser = CommandLine(
        prog="openclaw-rl resume", description="Let a run train again after a fuse has paused its training."
    )
    add_run(parser)
    run = parser.parse_args(argv).run
    note = resume(run) if run.is_dir() else None
    if note is None:
        print(f"training is not paused in {run}; name the folder of a run, such as runs/NAME", file=sys.stderr)
        return 2
    print(f"training goes on in {run}; it was: {note}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
