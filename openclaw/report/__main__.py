"""``openclaw-rl report RUN``, also ``python -m openclaw.report RUN``."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from groundwork.command_line import CommandLine
from groundwork.private_files import check_output, no_plain_file, write_output
from openclaw.exceptions import NoRunError
from openclaw.ledger.exceptions import LedgerError
from openclaw.report.build import build
from openclaw.runs.folder import open_run
from openclaw.runs.owner_option import add_owner
from openclaw.runtime.where import add_run

FILE_NAME = "report.html"


def build_parser() -> CommandLine:
    """Return the command line."""
    parser = CommandLine(
        prog="openclaw-rl report",
        description="Write one HTML file about a run: is it learning, curves, before and after, and why turns were not trained.",
        epilog="The file opens offline and holds no script. It works while a run writes, and on a run that is down.",
    )
    add_run(parser, optional=True)
    parser.add_argument(
        "--output", type=Path, metavar="FILE.html", help=f"the file; default: {FILE_NAME} in the run's folder"
    )
    add_owner(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Write the report; return the exit code: 2, with one line of explanation, on failure."""
    options = build_parser().parse_args(argv)
    started = time.monotonic()
    try:
        if options.output:
            check_output(options.output)
        run = open_run(options.run)
        report = build(run, options.owner)
        target = options.output or (run.folder or run.ledger_path.parent) / FILE_NAME
        size = write_output(target, report.page, run.ledger_path)
    except (LedgerError, NoRunError) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"cannot write the report: {error} with --output FILE.html", file=sys.stderr)
        return 2
    stream = sys.stderr if no_plain_file(target) else sys.stdout
    print(report.sentence, file=stream)
    print(f"wrote {target} ({size / 1e3:.0f} kB) in {time.monotonic() - started:.1f} s", file=stream)
    return 0


if __name__ == "__main__":
    sys.exit(main())
