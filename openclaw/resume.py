"""``openclaw-rl resume RUN``: let a run, or one person in it, train again that a fuse has paused (`slime.utils.fuses`).

Guarantees: a running run goes on within seconds, without a restart; one that is down goes on when it is resumed.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from groundwork.command_line import CommandLine
from groundwork.paused import WITHOUT_NAME, paused_people, resume
from openclaw.runtime.where import add_run


def main(argv: Sequence[str] | None = None) -> int:
    """Remove the notes of pauses, or that of one person; return the exit code: 2, with one line, if there is none."""
    parser = CommandLine(
        prog="openclaw-rl resume", description="Let a run train again after a fuse has paused its training."
    )
    add_run(parser)
    parser.add_argument(
        "--person", metavar="NAME", help=f"resume this person alone; {WITHOUT_NAME}: who has no key; default: everybody"
    )
    options = parser.parse_args(argv)
    run, name = options.run, options.person
    people = (None, *paused_people(run)) if name is None else ("" if name == WITHOUT_NAME else name,)
    notes = [note for person in people if (note := resume(run, person)) is not None]
    if not notes:
        print(f"training is not paused in {run}; name the folder of a run, such as runs/NAME", file=sys.stderr)
        return 2
    for note in notes:
        print(f"training goes on in {run}; it was: {note}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
