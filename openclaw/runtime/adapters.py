"""Each person's own adapter on the disk of a run: the versions one can go back to, leaving with it, and its deletion.

Guarantees: what is exported has the digest that the book of the run gives it (`slime.weight_sync.people`). A deletion leaves no
folder and no line of the person; engines serve the base from the next request on, and the trainer begins anew with the person.
Imports no torch.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

from groundwork.checkpoint_names import STATE_OF_PERSON
from groundwork.exceptions import ConfigError
from groundwork.paused import resume
from groundwork.people import mark_of
from groundwork.private_files import private_folder
from openclaw.ledger.sessions import Forgotten
from openclaw.ledger.store import Ledger
from slime.checkpoints.versions import forget_person as forget_in_checkpoints
from slime.updates.rollback import forget_rollback
from slime.weight_sync import people
from slime.weight_sync.people import Version

BASE_VERSION = "0"
"""The version of a person who has no accepted adapter: the base model's."""


def accepted_versions(run_dir: str | Path, person: str) -> tuple[Version, ...]:
    """Return the accepted versions of a person's adapter that are on disk, newest first.

    Raises:
        PeopleError: the book is unreadable.
    """
    return people.Book(people.people_folder(run_dir)).versions(mark_of(person))


def batch_of(run_dir: str | Path, person: str, number: str) -> int | None:
    """Return the last batch in an accepted version of a person's adapter, as its trainer says; None if it is not on disk.

    Raises:
        PeopleError: the book is unreadable.
    """
    folder = people.people_folder(run_dir)
    for version in accepted_versions(run_dir, person):
        state = people.folder_of(folder, version.name) / STATE_OF_PERSON
        if str(version.number) == number and state.is_file():
            return int(json.loads(state.read_text(encoding="utf-8"))["rollout_id"])
    return None


def export_adapter(run_dir: str | Path, person: str, to: Path) -> Version:
    """Write the version that serves a person to the new folder ``to``, as PEFT reads it, and return it.

    Raises:
        ConfigError: the person has no adapter yet, ``to`` or ``to.part`` exists, or a file is not what the book says.
        PeopleError: the book is unreadable.
    """
    versions = accepted_versions(run_dir, person)
    if not versions:
        raise ConfigError(f"no version of this person's adapter was accepted in {run_dir}; the base model answers")
    if os.path.lexists(to):
        raise ConfigError(f"{to} exists; name a new folder")
    source = people.folder_of(people.people_folder(run_dir), versions[0].name)
    part = to.with_name(f"{to.name}.part")
    if os.path.lexists(part):
        raise ConfigError(
            f"{part} exists, perhaps of an export that was interrupted; remove it, or name another folder"
        )
    private_folder(part)
    for name in (people.WEIGHTS, people.CONFIG):
        shutil.copyfile(source / name, part / name)
    if (found := people.digest_of(part)) != versions[0].sha256:
        shutil.rmtree(part)
        raise ConfigError(
            f"{source / people.WEIGHTS} has SHA-256 {found}, the book says {versions[0].sha256}; it is damaged"
        )
    part.replace(to)
    return versions[0]


def forget_adapter(run_dir: str | Path, save: str | Path | None, person: str) -> bool:
    """Delete all versions of a person's adapter with what their trainer keeps beside them; return whether there was any.

    A step that is under way is not kept (`slime.weight_sync.people.forget`). ``save``: the folder of the run's checkpoints, in
    which only the person's mark is struck out.

    Raises:
        PeopleError: the book is unreadable.
    """
    mark = mark_of(person)
    folder = people.people_folder(run_dir) / mark
    was_there = folder.is_dir()
    people.forget(run_dir, mark)
    if save is not None:
        forget_in_checkpoints(Path(save), mark)
    return was_there


def forget_all(
    ledger: Ledger, run_dir: str | Path | None, save: str | Path | None, person: str
) -> tuple[Forgotten, bool]:
    """Delete all of a person: the ledger's rows, the adapter and every note; return what the ledger had, and whether there was one.

    Call `Sessions.erase` of the ledger afterwards to remove the bytes. The adapter goes first, so that nothing learned serves if the
    process ends between two parts, and once more after the samples from which a trainer could begin meanwhile. Repeating it
    deletes the rest.

    Raises:
        LedgerFullError: the disk is full and the reserve too small.
        PeopleError: the book is unreadable.
    """
    was_there = run_dir is not None and forget_adapter(run_dir, save, person)
    gone = ledger.sessions.forget_person(person)
    if run_dir is not None:
        forget_adapter(run_dir, save, person)
        resume(run_dir, person)
        forget_rollback(run_dir, person)
    return gone, was_there
