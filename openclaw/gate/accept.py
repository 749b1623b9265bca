"""``openclaw-rl accept RUN``: accept a change of taste that the gate refused several times, or flags without effect.

Guarantees: one transaction of the ledger, whether the run is up or down, and a second call finds nothing to accept.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import closing

from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError
from openclaw.gate.versions import open_run, people_with_offers
from openclaw.ledger.exceptions import LedgerError
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import add_person, add_run, gate_command


def main(argv: Sequence[str] | None = None) -> int:
    """Accept; return the exit code: 2, with one line, if nothing is offered."""
    parser = CommandLine(
        prog="openclaw-rl accept",
        description="Accept what the gate refused because it contradicts earlier opinions, since users changed their mind, or "
        "for nothing but training flags that no code reads.",
        epilog="The refused samples are trained after all. A change of opinions retires older probes.",
    )
    add_run(parser)
    add_person(parser, "accept what was refused of this person's adapter, in a run with an adapter per person")
    options = parser.parse_args(argv)
    try:
        run = open_run(options.run)
        fewest = run.bounds().gate_offer
        with closing(Ledger(run.ledger)) as ledger:
            flags = ledger.decisions.accept_flags()
            accepted = ledger.decisions.accept_refused(fewest, options.person)
            refusals = len([refusal for refusal in ledger.decisions.refusals(options.person) if refusal.by_margin])
            others = [] if options.person is not None else people_with_offers(ledger, fewest)
    except (ConfigError, LedgerError) as error:
        print(error, file=sys.stderr)
        return 2
    if flags is not None:
        print(f"{flags.why}; no later update is refused for these flags")
    if accepted is None and flags is None:
        shown = gate_command("versions", run.folder, options.person)
        whose = f"; for a person's own adapter type: {gate_command('accept', run.folder, others[0])}" if others else ""
        print(
            f"nothing to accept in {run.folder}: {refusals} of {fewest} refusals of a series by users' opinions; see: {shown}{whose}",
            file=sys.stderr,
        )
        return 2
    if accepted is not None:
        print(f"{accepted.why}; probes from before that are retired, and the next updates follow the new opinions")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
