"""``openclaw-rl rollback RUN --to V``: let an earlier version of the weights serve again.

Guarantees: the wish is a note in the run's folder (`slime.updates.rollback`), so it survives the end of any process. A run
that is up acts within seconds; one that is down, when it is resumed. Nothing is asked for that the run cannot do.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import closing

from groundwork.command_line import CommandLine
from groundwork.paused import WITHOUT_NAME
from openclaw.gate.versions import RunFolder, open_run
from openclaw.ledger.decisions import DecisionRecord
from openclaw.ledger.exceptions import LedgerError
from openclaw.ledger.store import Ledger
from openclaw.runtime.adapters import BASE_VERSION, accepted_versions
from openclaw.runtime.where import add_person, add_run
from slime.exceptions import PeopleError
from slime.updates.rollback import ask_rollback, asked_rollback

POLL_SECONDS = 0.5
PROGRESS_SECONDS = 10.0


def known_versions(run: RunFolder) -> str:
    """Return the versions that have a checkpoint, as words."""
    versions = list(dict.fromkeys(item.weight_version for item in run.saved()))
    return f"checkpoints have {', '.join(versions)}" if versions else f"there is no checkpoint in {run.save} yet"


def why_not(run: RunFolder, version: str, person: str | None) -> str | None:
    """Return why a run cannot go back to a version, of a person's adapter with ``person``; None if it can."""
    if person is None:
        known = [item.weight_version for item in run.saved()]
        return None if version in known else f"no checkpoint of version {version}; {known_versions(run)}"
    name, kept = person or WITHOUT_NAME, accepted_versions(run.folder, person)
    if not kept:
        return f"no version of the adapter of {name} was accepted in {run.folder}; the base model answers"
    known = [BASE_VERSION, *(str(each.number) for each in reversed(kept))]
    if version == known[-1]:
        return f"version {version} serves {name} already"
    return (
        None
        if version in known
        else f"no version {version} of the adapter of {name} is kept; there are {', '.join(known)}"
    )


def rollbacks_of(ledger: Ledger, person: str | None) -> list[DecisionRecord]:
    """Return the rollbacks of a person's adapter, or of everybody's weights, oldest first."""
    return ledger.decisions.all("AND kind = 'rollback' AND person IS ? ORDER BY number", (person,))


def wait_until_done(run: RunFolder, rollbacks: int, person: str | None, tell: Callable[[str], None]) -> int:
    """Wait until the run has acted on the note; return the exit code.

    Args:
        run: that is up.
        rollbacks: number of rollbacks in its ledger before, of the person.
        person: whose adapter goes back; None: everybody's weights do.
        tell: takes lines about the progress.
    """
    started = reported = time.monotonic()
    while asked_rollback(run.folder, person) is not None:
        if not run.is_up():
            tell(f"the run in {run.folder} has ended meanwhile; it goes back when it is resumed")
            return 0
        if time.monotonic() - reported >= PROGRESS_SECONDS:
            reported = time.monotonic()
            tell(f"waiting for the run to go back, {reported - started:.0f} s: it finishes its step first")
        time.sleep(POLL_SECONDS)
    with closing(Ledger(run.ledger)) as ledger:
        done = rollbacks_of(ledger, person)
    if len(done) <= rollbacks:
        print(f"the run did not go back; the last lines in {run.folder} say why", file=sys.stderr)
        return 1
    tell(f"version {done[-1].weight_version} serves now: {done[-1].why}")
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Ask for a rollback and wait for it; return the exit code: 2, with one line, for an unknown version or folder."""
    parser = CommandLine(
        prog="openclaw-rl rollback",
        description="Let an earlier version of a run's weights serve again; training goes on from there.",
        epilog="The version must have a checkpoint, or a person's one must still be on disk: openclaw-rl versions RUN shows which do.",
    )
    add_run(parser)
    add_person(parser, "let an earlier version of this person's adapter serve the person again; version 0 is the base")
    parser.add_argument("--to", required=True, metavar="V", help="version of the weights")
    options = parser.parse_args(argv)
    try:
        run = open_run(options.run)
        if problem := why_not(run, options.to, options.person):
            print(problem, file=sys.stderr)
            return 2
        with closing(Ledger(run.ledger)) as ledger:
            rollbacks = len(rollbacks_of(ledger, options.person))
        ask_rollback(run.folder, options.to, options.person)
        if not run.is_up():
            print(f"the run in {run.folder} is down; it goes back to version {options.to} when it is resumed")
            return 0
        print(f"asked the run to go back to version {options.to}", flush=True)
        return wait_until_done(run, rollbacks, options.person, lambda line: print(line, flush=True))
    except (LedgerError, PeopleError) as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    raise SystemExit(main())
