"""The files of a repository as an archive, and what an agent changed in it.

Guarantees: a change is a whole file of the agent's against a whole file of ours, so nothing that the agent did to git, to a diff or to an index
decides what is judged. Archives of an agent were cleaned by `agentrl.tasks.shell.snapshot`.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from agentrl.tasks.harbor import Files

MAX_TREE = 60 << 20
"""Most bytes of a repository's archive; one call to a sandbox takes little more."""
UNTAKEN = ("./.git", "__pycache__", "*.pyc", ".pytest_cache", ".mypy_cache", ".ruff_cache")
"""Patterns of tar: what no snapshot of a repository has."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, or a link: then ``target`` is where it leads to."""

    data: bytes = b""
    executable: bool = False
    target: str | None = None


Entries = Mapping[str, Entry]


@dataclass(frozen=True, slots=True)
class Changes:
    """What differs: new content by path, and paths that are gone."""

    written: Entries
    removed: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.written or self.removed)

    @property
    def paths(self) -> tuple[str, ...]:
        """All paths, in order."""
        return tuple(sorted({*self.written, *self.removed}))

    def only(self, paths: set[str]) -> Changes:
        """Return the changes of some paths."""
        return Changes(
            {path: entry for path, entry in self.written.items() if path in paths},
            tuple(path for path in self.removed if path in paths),
        )


def entries_of(tree: bytes) -> Entries:
    """Return the files and links of an archive; folders exist through them."""
    entries: dict[str, Entry] = {}
    with tarfile.open(fileobj=io.BytesIO(tree), mode="r:") as archive:
        for member in archive:
            name = member.name.removeprefix("./")
            if member.issym():
                entries[name] = Entry(target=member.linkname)
            elif member.isreg():
                file = archive.extractfile(member)
                assert file is not None
                entries[name] = Entry(file.read(), bool(member.mode & 0o100))
    return entries


def tree_of(entries: Entries) -> bytes:
    """Return an archive; the same entries give the same bytes."""
    result = io.BytesIO()
    with tarfile.open(fileobj=result, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in sorted(entries):
            entry, member = entries[name], tarfile.TarInfo(name)
            if entry.target is not None:
                member.type, member.linkname = tarfile.SYMTYPE, entry.target
                archive.addfile(member)
            else:
                member.size, member.mode = len(entry.data), 0o755 if entry.executable else 0o644
                archive.addfile(member, io.BytesIO(entry.data))
    return result.getvalue()


def tree_of_files(files: Files) -> bytes:
    """Return the archive of files in memory."""
    return tree_of({path: Entry(file.data, bool(file.mode & 0o100)) for path, file in files.items()})


def changes(before: Entries, after: Entries) -> Changes:
    """Return what differs between two states."""
    written = {path: entry for path, entry in after.items() if before.get(path) != entry}
    return Changes(written, tuple(sorted(path for path in before if path not in after)))
