"""Everybody's own adapter on disk: the folders of versions, and the book that says which one serves whom.

::

    RUN_DIR/people/book.json                      what serves, by mark (`groundwork.people.mark_of`)
    RUN_DIR/people/shared.json                    a number of this start, by which machines know that they share the folder
    RUN_DIR/people/MARK/VERSION-PUSH/             one version: adapter_model.safetensors, adapter_config.json, and what
                                                  its trainer keeps beside them

Versions count per person from 1; a person without a line in the book is served by the base, version "0". A version's
folder appears by rename and never changes, so an engine may load it at any time. :func:`publish` is what makes it serve:
a request admitted after it gets the new version on every engine that sees the folder. A candidate has a folder and no
line. Nothing here holds a person's name.

The book also counts how often each person was forgotten. Whoever writes a version says which count its state began under, and
nothing that began before a :func:`forget` is kept or published after it (:class:`~slime.exceptions.ForgottenError`).

Guarantees: the book is replaced as a whole, so a reader sees the one before or after a change, also across a crash; a
change waits for another process's. Rank 0 of the trainer changes it, and who forgets a person. Imports no torch.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from groundwork.people import MARK
from groundwork.private_files import private, private_folder, write_note
from slime.exceptions import ForgottenError, PeopleError
from slime.weight_sync import ADAPTER_NAME

FOLDER, BOOK, LOCK, SIGNATURE = "people", "book.json", "book.lock", "shared.json"
WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
FORMAT = 1
KEPT = 4
"""Accepted versions of a person that stay on disk."""
CHUNK_BYTES = 1 << 20


class Version(NamedTuple):
    """An accepted version of a person's adapter.

    Attributes:
        name: on the engines.
        sha256: of its weights' file, in hexadecimal digits.
    """

    name: str
    sha256: str

    @property
    def number(self) -> int:
        """The weight version."""
        return _parts(self.name)[0]

    @property
    def mark(self) -> str:
        """Whose it is."""
        return _parts(self.name)[2]


Lines = dict[str, tuple[Version, ...]]
"""Each person's accepted versions by mark; the first one serves."""


class _Content(NamedTuple):
    """What the book says.

    Attributes:
        lines: of who has an accepted version.
        forgotten: how often each person was forgotten, by a digest of the mark; who is missing, never.
    """

    lines: Lines
    forgotten: dict[str, int]

    def times(self, mark: str) -> int:
        """Return how often a person was forgotten."""
        return self.forgotten.get(_tombstone(mark), 0)


def people_folder(run_dir: str | Path) -> Path:
    """Return the folder of everybody's adapters."""
    return Path(run_dir, FOLDER)


def sign(run_dir: str | Path) -> str:
    """Write a new number into the folder of everybody's adapters, and return it."""
    people = people_folder(run_dir)
    private_folder(people)
    number = secrets.token_hex(8)
    write_note(people / SIGNATURE, {"number": number})
    return number


def signature(people: Path) -> str | None:
    """Return the number that was written last, as this machine sees it; None if it sees none."""
    try:
        return str(json.loads((people / SIGNATURE).read_text(encoding="utf-8"))["number"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def not_shared(run_dir: str | Path, who: str) -> PeopleError:
    """Return the error of a machine that does not see the folder."""
    return PeopleError(
        f"{who} does not see {people_folder(run_dir)} as the trainer's first rank does, but reads everybody's adapters there; "
        "give --run-dir a folder that all machines of the run share, at the same path"
    )


def adapter_name(version: int, maker: str, push: int, mark: str) -> str:
    """Return the name on the engines of ``version`` of a person, see `slime.weight_sync.ADAPTER_NAME`.

    ``push`` is a number that no other version of the run has (`slime.weight_sync.adapter.PUSHES`).
    """
    return f"weights-{version}-{maker}-{push}-{mark}"


def mark_in(name: str | None) -> str | None:
    """Return whose adapter a name on the engines is; None if it is no person's."""
    match = ADAPTER_NAME.fullmatch(name or "")
    return match[4] if match else None


def folder_of(people: Path, name: str) -> Path:
    """Return the folder of a version by its name, whether it is there or not; ``people``: see :func:`people_folder`.

    Raises:
        PeopleError: it is not the name of a person's adapter.
    """
    version, push, mark = _parts(name)
    return people / mark / f"{version}-{push}"


def digest_of(folder: Path) -> str:
    """Return the SHA-256 of a version's weights' file, in hexadecimal digits.

    Raises:
        PeopleError: there is no such file.
    """
    digest = hashlib.sha256()
    try:
        with open(folder / WEIGHTS, "rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
    except OSError as error:
        raise PeopleError(f"{folder / WEIGHTS} cannot be read: {error.strerror or error}") from error
    return digest.hexdigest()


class Book:
    """The book as one process reads it: parsed again only after it was replaced."""

    def __init__(self, people: Path) -> None:
        """``people``: see :func:`people_folder`."""
        self._file = people / BOOK
        self._stamp: tuple[int, ...] | None = None
        self._content = _Content({}, {})

    def lines(self) -> Lines:
        """Return everybody's accepted versions, newest first; do not change what is returned.

        Raises:
            PeopleError: the book is unreadable.
        """
        return self.content().lines

    def forgotten(self, mark: str) -> int:
        """Return how often a person was forgotten; raises as :meth:`lines`."""
        return self.content().times(mark)

    def content(self) -> _Content:
        """Return all that the book says; do not change it; raises as :meth:`lines`."""
        try:
            with open(self._file, "rb") as file:
                status = os.fstat(file.fileno())
                stamp = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                if stamp != self._stamp:
                    self._content = _parsed(file.read())
                    self._stamp = stamp
        except FileNotFoundError:
            self._stamp, self._content = None, _Content({}, {})
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            self._stamp = None
            raise PeopleError(
                f"{self._file} is unreadable ({error}); delete it and start the run again from its newest checkpoint, "
                "which says which version serves whom"
            ) from error
        return self._content

    def versions(self, mark: str) -> tuple[Version, ...]:
        """Return a person's accepted versions that are still kept, newest first; raises as :meth:`lines`."""
        return self.lines().get(mark, ())

    def serving(self, mark: str) -> Version | None:
        """Return the version that serves a person, None if that is the base; raises as :meth:`lines`."""
        versions = self.versions(mark)
        return versions[0] if versions else None


def keep(run_dir: str | Path, name: str, written: Path, forgotten: int) -> None:
    """Give the folder ``written``, which is whole, the final name of a version; nobody is served by it yet.

    Args:
        run_dir: the run's folder.
        name: of the version.
        written: a folder beside the final one.
        forgotten: how often the person had been forgotten when the state in it began, see :meth:`Book.forgotten`.

    Raises:
        ForgottenError: the person was forgotten since; the folder is deleted.
        PeopleError: the book is unreadable.
    """
    people = people_folder(run_dir)
    try:
        with _changing(people) as book:
            _check_known(book, _parts(name)[2], forgotten)
            written.rename(folder_of(people, name))
    except ForgottenError:
        discard(written)
        raise


def discard(written: Path) -> None:
    """Delete a version's folder, and the folder of its person if it was the last one there."""
    _delete(written)
    with suppress(OSError):
        written.parent.rmdir()


def publish(run_dir: str | Path, name: str, forgotten: int | None = None) -> Version:
    """Make a version serve its person from the next request on, and return it.

    An accepted version that is published again takes back those accepted after it. ``forgotten``: as of :func:`keep`; None:
    whatever the book says.

    Raises:
        ForgottenError: the person was forgotten since.
        PeopleError: its folder is not there, or the book is unreadable.
    """
    people, mark = people_folder(run_dir), _parts(name)[2]
    with _changing(people) as book:
        if forgotten is not None:
            _check_known(book, mark, forgotten)
        version = Version(name, digest_of(folder_of(people, name)))
        accepted = book.lines.get(mark, ())
        names = [other.name for other in accepted]
        book.lines[mark] = (version, *accepted[names.index(name) + 1 if name in names else 0 :])
    return version


def _check_known(book: _Content, mark: str, forgotten: int) -> None:
    if book.times(mark) != forgotten:
        raise ForgottenError(f"person {mark} was forgotten meanwhile")


def withdraw(run_dir: str | Path, name: str) -> Version | None:
    """Strike an accepted version out, and return what serves its person then; None: the base. Its folder stays.

    Raises:
        PeopleError: the book is unreadable, or ``name`` is no person's adapter.
    """
    mark = _parts(name)[2]
    with _changing(people_folder(run_dir)) as book:
        left = book.lines[mark] = tuple(version for version in book.lines.get(mark, ()) if version.name != name)
    return left[0] if left else None


def set_back(run_dir: str | Path, manifest: Mapping[str, str]) -> list[str]:
    """Make the book say what a checkpoint's manifest says, and return the marks whose version changed.

    Args:
        run_dir: the run's folder.
        manifest: the name of the version that served each person, by mark; of a person who is not in it the base.

    Raises:
        PeopleError: the folder of a version in it is gone, or the book is unreadable.
    """
    people = people_folder(run_dir)
    changed = []
    with _changing(people) as book:
        lines = book.lines
        for mark in sorted(lines.keys() | manifest.keys()):
            versions, name = lines.get(mark, ()), manifest.get(mark)
            names = [version.name for version in versions]
            if name is None:
                lines[mark] = ()
            elif name in names:
                lines[mark] = versions[names.index(name) :]
            else:
                lines[mark] = (Version(name, digest_of(folder_of(people, name))),)
            if lines[mark] != versions:
                changed.append(mark)
    return changed


def prune(run_dir: str | Path, mark: str, held: Collection[str] = (), kept: int = KEPT) -> None:
    """Delete the folders of a person's versions, except of the ``kept`` newest accepted and of the names in ``held``.

    ``held``: candidates, and what checkpoints need. Accepted versions that are deleted leave the book first.

    Raises:
        PeopleError: the book is unreadable.
    """
    people = people_folder(run_dir)
    stays = {folder_of(people, name).name for name in held}
    with _changing(people) as book:
        book.lines[mark] = tuple(
            version
            for place, version in enumerate(book.lines.get(mark, ()))
            if place < kept or folder_of(people, version.name).name in stays
        )
        stays |= {folder_of(people, version.name).name for version in book.lines[mark]}
    for folder in _folders(people / mark):
        if folder.name not in stays:
            _delete(folder)


def forget(run_dir: str | Path, mark: str) -> None:
    """Delete all that is kept of a person here: the line in the book, then every version's folder; the book counts it.

    What began before, here or in a trainer, is not kept or published afterwards.

    Raises:
        PeopleError: the book is unreadable, or ``mark`` is no mark.
    """
    if not MARK.fullmatch(mark):
        raise PeopleError(f"{mark!r} is not a person's mark, which has 12 hexadecimal digits")
    people = people_folder(run_dir)
    if not people.is_dir():
        return
    with _changing(people) as book:
        book.lines.pop(mark, None)
        book.forgotten[_tombstone(mark)] = book.times(mark) + 1
    _delete(people / mark)


def _tombstone(mark: str) -> str:
    """Return what stands for who was forgotten: as little of a name as a deleted session leaves in the ledger."""
    return hashlib.blake2b(mark.encode(), digest_size=8, person=b"forgotten").hexdigest()


def _parts(name: str) -> tuple[int, int, str]:
    """Return the version, the push and the mark in the name of a person's adapter."""
    match = ADAPTER_NAME.fullmatch(name)
    if match is None or match[4] is None:
        raise PeopleError(f"{name!r} is not the name of a person's adapter (weights-VERSION-MAKER-PUSH-MARK)")
    return int(match[1]), int(match[3]), match[4]


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except FileNotFoundError:
        return []


def _delete(folder: Path) -> None:
    """Delete a folder if it is there, also while another process deletes it, or puts something into it."""
    while folder.is_dir():
        try:
            shutil.rmtree(folder)
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno != errno.ENOTEMPTY:
                raise


def _parsed(text: bytes) -> _Content:
    """Return the content of a book; raise ValueError, TypeError, KeyError or AttributeError for anything else."""
    content = json.loads(text)
    if content["format"] != FORMAT:
        raise ValueError(f"its format is {content['format']!r}, this release writes {FORMAT}")
    lines: Lines = {}
    for mark, versions in content["people"].items():
        lines[mark] = tuple(Version(str(line["name"]), str(line["sha256"])) for line in versions)
        for version in lines[mark]:
            if (match := ADAPTER_NAME.fullmatch(version.name)) is None or match[4] != mark:
                raise ValueError(f"it has {version.name!r} under {mark!r}")
    return _Content(lines, {stone: int(times) for stone, times in content.get("forgotten", {}).items()})


@contextmanager
def _changing(people: Path) -> Iterator[_Content]:
    """Give the book's content to change; it is written, if it differs, when the block ends well."""
    private_folder(people)
    with open(people / LOCK, "ab", opener=private) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = Book(people).content()
        after = _Content(dict(before.lines), dict(before.forgotten))
        yield after
        lines = {mark: versions for mark, versions in sorted(after.lines.items()) if versions}
        if (lines, after.forgotten) != before:
            said = {mark: [version._asdict() for version in versions] for mark, versions in lines.items()}
            write_note(people / BOOK, {"format": FORMAT, "people": said, "forgotten": after.forgotten})
