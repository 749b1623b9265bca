"""Each person's own adapter on the disk of a run: the versions one can go back to, leaving with it, and its deletion.

Guarantees: what is exported has the digest that the book of the run gives it (`slime.weight_sync.people`). A deletion leaves no
folder and no line of the person; engines serve the base from the next request on, and the trainer begins anew with the person.
Imports no torch.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any

from groundwork.checkpoint_names import STATE_OF_PERSON
from groundwork.exceptions import ConfigError
from groundwork.paused import paused_people, resume
from groundwork.people import mark_of
from groundwork.private_files import private_folder
from openclaw.gateway.own_adapters import Export, NotPossibleError
from openclaw.ledger.sessions import Forgotten
from openclaw.ledger.store import Ledger
from openclaw.runtime.where import ARGUMENTS_NAME, scratch_of
from slime.checkpoints.versions import forget_person as forget_in_checkpoints
from slime.exceptions import PeopleError
from slime.updates.rollback import ask_rollback, asked_rollback, forget_rollback
from slime.weight_sync import people
from slime.weight_sync.people import Version

logger = logging.getLogger(__name__)

BASE_VERSION = "0"
"""The version of a person who has no accepted adapter: the base model's."""
SHOWN_DECISIONS = 50
"""Decisions of the gate about one person that the gateway shows."""


def accepted_versions(run_dir: str | Path, person: str) -> tuple[Version, ...]:
    """Return the accepted versions of a person's adapter that are on disk, newest first.

    Raises:
        PeopleError: the book is unreadable.
    """
    return people.Book(people.people_folder(run_dir)).versions(mark_of(person))


def times_forgotten(run_dir: str | Path, person: str) -> int:
    """Return how often a person was forgotten in a run.

    Raises:
        PeopleError: the book is unreadable.
    """
    return people.Book(people.people_folder(run_dir)).forgotten(mark_of(person))


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


def export_adapter(run_dir: str | Path, person: str, to: Path, number: str | None = None) -> Version:
    """Write a version of a person's adapter to the new folder ``to``, as PEFT reads it, and return it; None: the one that serves.

    Raises:
        ConfigError: there is no such version, ``to`` or ``to.part`` exists, or a file is not what the book says.
        PeopleError: the book is unreadable.
    """
    versions = accepted_versions(run_dir, person)
    if not versions:
        raise ConfigError(f"no version of this person's adapter was accepted in {run_dir}; the base model answers")
    version = next((each for each in versions if number in (None, str(each.number))), None)
    if version is None:
        raise ConfigError(f"version {number} of this person's adapter is not kept in {run_dir}")
    copy_adapter(people.folder_of(people.people_folder(run_dir), version.name), to, version.sha256)
    return version


def copy_adapter(source: Path, to: Path, sha256: str | None = None) -> None:
    """Copy PEFT's two files of an adapter to the new folder ``to``, whole or not at all.

    Raises:
        ConfigError: ``to`` or ``to.part`` exists, or the weights have not the digest ``sha256``.
    """
    if os.path.lexists(to):
        raise ConfigError(f"{to} exists; name a new folder")
    part = to.with_name(f"{to.name}.part")
    if os.path.lexists(part):
        raise ConfigError(
            f"{part} exists, perhaps of an export that was interrupted; remove it, or name another folder"
        )
    private_folder(part)
    for name in (people.WEIGHTS, people.CONFIG):
        shutil.copyfile(source / name, part / name)
    if sha256 is not None and (found := people.digest_of(part)) != sha256:
        shutil.rmtree(part)
        raise ConfigError(f"{source / people.WEIGHTS} has SHA-256 {found}, the book says {sha256}; it is damaged")
    part.replace(to)


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
    shutil.rmtree(scratch_of(run_dir), ignore_errors=True)  # what a process that was killed left of a version
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


class RunAdapters:
    """Everybody's adapters of a run for the gateway (`openclaw.gateway.own_adapters.OwnAdapters`)."""

    def __init__(self, ledger: Ledger, run_dir: str | Path, fewest: int) -> None:
        """Take the run's ledger and folder; ``fewest``: refusals that a person may accept (``OPENCLAW_GATE_OFFER``)."""
        self._ledger = ledger
        self._run_dir = run_dir
        self._fewest = fewest

    def _accepted(self, person: str) -> tuple[Version, ...]:
        """Return `accepted_versions`; raise NotPossibleError if the book is unreadable."""
        try:
            return accepted_versions(self._run_dir, person)
        except PeopleError as error:
            raise _unreadable(error) from error

    def versions(self, person: str) -> dict[str, Any]:
        """Return a person's versions, newest first, with what the gate decided about each."""
        decisions = self._ledger.decisions
        kept = {str(version.number): version.sha256 for version in self._accepted(person)}
        serving = next(iter(kept), BASE_VERSION)
        newest = decisions.all("AND person IS ? ORDER BY number DESC LIMIT ?", (person, SHOWN_DECISIONS))
        rows = [
            {
                "version": each.weight_version or None,
                "decision": each.kind,
                "decided_at": each.decided_at,
                "live_at": each.live_at,
                "samples": each.samples,
                "by_opinions": each.by_margin,
                "margin": each.metrics.get("gate/margin"),
                "certificate": None if each.certificate is None else each.certificate["verdict"],
                "causes": [] if each.certificate is None else each.certificate["causes"],
            }
            for each in newest
        ]
        asked = asked_rollback(self._run_dir, person)
        offer = decisions.offer(self._fewest, person)
        paused = paused_people(self._run_dir).get(person)
        return {
            "object": "adapter",
            "serving": serving,
            "kept": [{"version": version, "sha256": sha256} for version, sha256 in kept.items()],
            "decisions": rows,
            "rollback_to": None if asked is None else asked.version,
            "offer": None if offer is None else {"refusals": offer.refusals, "samples": offer.samples},
            "training_paused": None if paused is None else paused.why,
        }

    def ask_rollback(self, person: str, version: str) -> None:
        """Write the note that the run follows.

        Raises:
            NotPossibleError: the version serves already, or is not kept.
        """
        kept = [str(each.number) for each in self._accepted(person)]
        if version == (kept[0] if kept else BASE_VERSION):
            raise NotPossibleError(f"version {version} serves already")
        if version not in (known := [BASE_VERSION, *reversed(kept)]):
            raise NotPossibleError(f"no version {version} is kept; there are {', '.join(known)}")
        ask_rollback(self._run_dir, version, person)

    def accept(self, person: str) -> int:
        """Accept what the gate refused by the person's opinions; return how many samples are ready again.

        Raises:
            NotPossibleError: nothing is offered.
        """
        accepted = self._ledger.decisions.accept_refused(self._fewest, person)
        if accepted is None:
            raise NotPossibleError(f"nothing to accept: a series of {self._fewest} refusals by your opinions is needed")
        return accepted.samples

    def export(self, person: str) -> Export:
        """Return the version that serves a person, whose bytes are those of the book.

        Raises:
            NotPossibleError: there is none, or its file is damaged.
        """
        versions = self._accepted(person)
        if not versions:
            raise NotPossibleError("no version of your adapter was accepted yet; the base model answers")
        folder = people.folder_of(people.people_folder(self._run_dir), versions[0].name)
        with ExitStack() as files:
            try:
                parts = [
                    (name, files.enter_context(open(folder / name, "rb"))) for name in (people.CONFIG, people.WEIGHTS)
                ]
                intact = people.digest_of(folder) == versions[0].sha256
            except (OSError, PeopleError) as error:
                raise NotPossibleError("the version that serves was deleted meanwhile; ask again") from error
            if not intact:
                raise NotPossibleError("the file of the version that serves is damaged; go back to an earlier one")
            number = str(versions[0].number)
            return Export(number, versions[0].sha256, _tar(f"adapter-{number}", parts, files.pop_all()))

    def forget(self, person: str) -> tuple[Forgotten, bool]:
        """Delete all of a person, see `forget_all`.

        Raises:
            NotPossibleError: the book is unreadable.
        """
        try:
            save = json.loads(Path(self._run_dir, ARGUMENTS_NAME).read_text(encoding="utf-8")).get("save")
        except (OSError, ValueError):
            save = None
        try:
            return forget_all(self._ledger, self._run_dir, save, person)
        except PeopleError as error:
            raise _unreadable(error) from error


def _unreadable(error: PeopleError) -> NotPossibleError:
    """Log what its operator has to do about the book, and return what a person may read of that."""
    logger.error("%s", error)
    return NotPossibleError("the server cannot read which adapters it has; its log tells the operator what to do")


def _tar(folder: str, parts: Sequence[tuple[str, IO[bytes]]], files: ExitStack) -> Iterator[bytes]:
    """Yield a tar with open files in a folder, then close them."""
    with files:
        for name, file in parts:
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size, info.mode = os.fstat(file.fileno()).st_size, 0o600
            yield info.tobuf()
            while chunk := file.read(people.CHUNK_BYTES):
                yield chunk
            yield bytes(-info.size % tarfile.BLOCKSIZE)
        yield bytes(2 * tarfile.BLOCKSIZE)
