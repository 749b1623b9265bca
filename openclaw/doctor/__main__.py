"""``openclaw-rl doctor RUN``, also ``python -m openclaw.doctor RUN``."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from groundwork.command_line import CommandLine
from openclaw.doctor.diagnose import diagnose
from openclaw.exceptions import NoRunError
from openclaw.ledger.exceptions import LedgerError
from openclaw.messages.preview import harmless
from openclaw.runs.folder import open_run
from openclaw.runtime.where import add_run

HEALTHY, ILL, UNREADABLE = 0, 1, 2


def build_parser() -> CommandLine:
    """Return the command line."""
    parser = CommandLine(
        prog="openclaw-rl doctor",
        description="Say what is wrong with a run, the most serious first: the evidence, and what to type.",
        epilog="Exit status: 0 if the run is healthy, 1 with findings, 2 if it cannot be read. It looks at the newest 1,000 "
        "turns. scripts/setup.sh doctor looks at this machine instead: GPUs, drivers, memory.",
    )
    add_run(parser, optional=True)
    parser.add_argument("--json", action="store_true", help="print the findings as a JSON list")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Print the findings; return the exit status."""
    options = build_parser().parse_args(argv)
    try:
        result = diagnose(open_run(options.run))
    except (LedgerError, NoRunError) as error:
        print(error, file=sys.stderr)
        return UNREADABLE
    if options.json:
        print(json.dumps([finding.to_dict() for finding in result], indent=1))
        return ILL if result else HEALTHY
    if not result:
        print(f"{options.run} looks healthy; openclaw-rl report {options.run} shows what it learned")
        return HEALTHY
    for number, finding in enumerate(result, 1):
        print(harmless(f"{number}. {finding.title} ({finding.name})"))
        print(harmless(f"   evidence: {finding.evidence}"))
        print(harmless(f"   do:       {finding.remedy}"))
    return ILL


if __name__ == "__main__":
    sys.exit(main())
