"""``openclaw-rl forget RUN --person NAME``: the deletion of all of one person.

Guarantees: after a deletion no file of the run has a byte of the person's words, and no version of their adapter is left; a run that
is up goes on, and its trainer begins anew with the person. A process that ends in between leaves nothing that serves; repeating
the command deletes the rest.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from contextlib import closing

from groundwork.paused import WITHOUT_NAME
from openclaw.ledger.exceptions import UnknownRecordError
from openclaw.ledger.views import counted
from openclaw.runs.folder import open_run
from openclaw.runtime.adapters import forget_all


def forget_person(options: argparse.Namespace) -> Iterable[str]:
    """Delete all of a person: conversations, lessons, decisions, adapter and optimizer state; yield what was deleted.

    Raises:
        UnknownRecordError: the run has nothing of this person.
    """
    run, person = open_run(options.ledger), options.person
    name = person or WITHOUT_NAME
    with closing(run.open_ledger()) as ledger:
        gone, adapter = forget_all(ledger, run.folder, run.trainer_arguments().save, person)
        yield f"deleted {counted(gone.turns, 'turn')} and {counted(gone.samples, 'sample')} of {name}, with all lessons"
        for backup in ledger.sessions.erase():
            yield f"deleted {backup}, a backup of the file from before a migration"
    if not gone.turns and not adapter:
        raise UnknownRecordError(f"{run.ledger_path} has no turn of {name}; openclaw-rl inspect lists the owners")
    if adapter:
        yield f"deleted the adapter of {name} in all versions, with the state of its optimizer; the base model answers {name} now"
    elif gone.trained:
        yield f"{gone.trained} of the samples had been trained; weights and checkpoints that learned from them remain"
    yield f"no file of the run has a word of {name} any more; exports, logs and other copies are not searched"
