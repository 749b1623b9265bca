"""What an agent left in its working directory, as data.

Guarantees: a snapshot holds plain files, folders and symbolic links that lead downwards only, so unpacking it in another
sandbox touches nothing but its working directory, and no path in it leads out of there. It is bounded in bytes and names: it
holds no byte that the archive of the agent's sandbox did not hold. That archive is untrusted: it is parsed in one pass, never
unpacked, on this machine, with memory for two archives and their names. Hard links are left out; one with a sparse member, or
with names that no file system has, is the agent's error.
"""

from __future__ import annotations

import asyncio
import io
import re
import shlex
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import PurePosixPath

from agentrl.exceptions import InfraError, InvalidError
from agentrl.sandbox.interface import HOME, Sandbox

MAX_BYTES = 8 << 20
MAX_NAMES = 10_000
MAX_PATH, MAX_NAME = 4095, 255
"""Bytes of a path, and of each name in it, that Linux takes."""
MAX_HEADER = 1 << 16
"""Most bytes of a header that says more of the next member than its own block can."""
LONG = {tarfile.GNUTYPE_LONGNAME: "path", tarfile.GNUTYPE_LONGLINK: "linkpath"}
EXTRA = (*LONG, tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE)
DEVICES = (tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE)
RECORD = re.compile(rb"(\d{1,7}) ([^=\n]{1,200})=")
"""How a record of a header begins: its length, and the name of the value."""
MAX_SHOWN = 100
SECONDS = 60.0
PACK = ("tar", "--create", "--hard-dereference", "--ignore-failed-read", "--one-file-system", "--file=-")
UNPACK = ("tar", "--extract", "--preserve-permissions", "--no-same-owner", "--file=-")


class UnusableError(Exception):
    """What the agent left cannot be judged; its own doing."""


async def take(
    sandbox: Sandbox, *, most_bytes: int = MAX_BYTES, without: Sequence[str] = (), folder: str = HOME
) -> bytes:
    """Return what is in a sandbox's working directory, as a clean archive.

    Args:
        sandbox: to look into.
        most_bytes: of the archive.
        without: patterns of tar: what is left out.
        folder: to pack instead of the working directory.

    Raises:
        UnusableError: it is too much, or the sandbox has no room left to look at it.
        InfraError: the sandbox is gone.
    """
    words = [*PACK, *(f"--exclude={pattern}" for pattern in without), "."]
    line = f"{shlex.join(words)} 2> /dev/null | head -c {most_bytes + 1}"
    try:
        result = await sandbox.execute(
            ["bash", "-p", "-c", line], timeout_s=SECONDS, most_output=most_bytes + 1, cwd=folder
        )
    except InvalidError as error:
        raise UnusableError(f"the working directory could not be read: {error}") from error
    if result.timed_out:
        raise UnusableError(f"the working directory could not be read within {SECONDS:g} s")
    if result.cut_bytes or len(result.output) > most_bytes:
        raise UnusableError(f"the working directory has more than {most_bytes} bytes")
    return await asyncio.to_thread(clean, result.output)


async def put(sandbox: Sandbox, snapshot: bytes, *, of_agent: bool = False) -> None:
    """Unpack a snapshot in a fresh sandbox's working directory.

    Args:
        sandbox: to unpack in.
        snapshot: a clean archive.
        of_agent: whether an agent left what is in it.

    Raises:
        UnusableError: an agent's cannot be unpacked, for example because a path is too long.
        InfraError: another one cannot, or the sandbox is gone.
    """
    result = await sandbox.execute(UNPACK, timeout_s=SECONDS, stdin=snapshot)
    if result.exit_code != 0:
        if of_agent:
            said = result.output.decode(errors="replace").strip()[-200:]
            raise UnusableError(f"the working directory cannot be unpacked: {said}")
        raise InfraError(f"a snapshot was not unpacked: {result.output[-500:]!r}", code="snapshot_failed")


def clean(packed: bytes) -> bytes:
    """Return an archive without what could lead out of the folder that it is unpacked in.

    Raises:
        UnusableError: it is not an archive of plain members, one of them does not fit where another one is, a path is too long for
            a file system, or there are too many names.
    """
    result = io.BytesIO()
    names = _Names()
    for member, data in _members(memoryview(packed)):
        name = PurePosixPath(member.name)
        inside = not name.is_absolute() and ".." not in name.parts
        if not inside or not (member.isdir() or member.isreg() or _leads_down(member)):
            continue
        if not names.add(str(name), folder=member.isdir()):
            continue
        copy = tarfile.TarInfo(str(name))
        copy.type, copy.linkname, copy.mode = member.type, member.linkname, member.mode & 0o777
        if member.isreg():
            copy.type, copy.size = tarfile.REGTYPE, len(data)
        result.write(copy.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        result.write(data)
        result.write(bytes(-len(data) % tarfile.BLOCKSIZE))
    result.write(bytes(2 * tarfile.BLOCKSIZE))
    result.write(bytes(-result.tell() % tarfile.RECORDSIZE))
    return result.getvalue()


class _Names:
    """The names that an archive has so far; a folder that only has something below it is one, too."""

    def __init__(self) -> None:
        self._folders: set[str] = {"."}
        self._members: set[str] = set()
        self._leaves = 0

    def add(self, name: str, *, folder: bool) -> bool:
        """Add a member; return whether it is the first of its name.

        Raises:
            UnusableError: no file system has this name, or has it beside the others.
        """
        if name in self._members:
            return False
        _check_path(name)
        self._members.add(name)
        if folder:
            self._folders.add(name)
        elif name in self._folders:
            raise _unreadable(f"{_shown(name)} is a folder and something else")
        else:
            self._leaves += 1
        above = name
        while above := above.rpartition("/")[0]:
            if above in self._folders:
                break
            if above in self._members:
                raise _unreadable(f"{_shown(above)} is a folder and something else")
            self._folders.add(above)
            self._check_number()
        self._check_number()
        return True

    def _check_number(self) -> None:
        if len(self._folders) + self._leaves > MAX_NAMES + 1:
            raise UnusableError(f"the working directory has more than {MAX_NAMES} names")


def _members(packed: memoryview) -> Iterator[tuple[tarfile.TarInfo, memoryview]]:
    """Yield each member of an untrusted archive with its data, which is a part of ``packed``.

    `tarfile` would read it with memory and time that the archive chooses: it takes sizes from sparse maps, and gives every
    member a copy of the global headers.

    Raises:
        UnusableError: it is not an archive, a member is not all there, or is one whose size is not that of its data.
    """
    if not packed:
        raise _unreadable("the archive is empty")
    at, headers = 0, dict[str, str]()
    while at < len(packed) and (header := bytes(packed[at : at + tarfile.BLOCKSIZE])).strip(b"\0"):
        try:
            member = tarfile.TarInfo.frombuf(header, "utf-8", "surrogateescape")
            size = int(headers.get("size", member.size))
        except (tarfile.TarError, ValueError) as error:
            raise _unreadable(str(error)) from error
        at += tarfile.BLOCKSIZE
        if member.type in (tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, *DEVICES):
            size = 0
        if not 0 <= size <= len(packed) - at or member.type == tarfile.GNUTYPE_SPARSE:
            raise _unreadable(f"{_shown(member.name)} is not all there")
        data = packed[at : at + size]
        at += size + -size % tarfile.BLOCKSIZE
        if member.type in EXTRA:
            headers |= _extra(member.type, data)
            continue
        member.name, member.linkname = headers.get("path", member.name), headers.get("linkpath", member.linkname)
        headers = {}
        yield member, data


def _extra(kind: bytes, header: memoryview) -> dict[str, str]:
    """Return what a header says of the next member: of its path, its target and its size.

    Raises:
        UnusableError: it is too large or broken, or the next member is sparse.
    """
    if len(header) > MAX_HEADER:
        raise _unreadable(f"a header has {len(header)} bytes")
    data, extra = bytes(header), dict[str, str]()
    if kind in LONG:
        return {LONG[kind]: data.partition(b"\0")[0].decode("utf-8", "surrogateescape")}
    at = 0
    while kind != tarfile.XGLTYPE and at < len(data):
        record = RECORD.match(data, at)
        end = at + int(record[1]) if record else 0
        if record is None or not record.end() < end <= len(data) or record[2].startswith(b"GNU.sparse"):
            raise _unreadable("a header is broken, or that of a sparse file")
        if record[2] in (b"path", b"linkpath", b"size"):
            extra[record[2].decode()] = data[record.end() : end - 1].decode("utf-8", "surrogateescape")
        at = end
    return extra


def _leads_down(member: tarfile.TarInfo) -> bool:
    """Return whether a link leads to a place below its own folder, whatever other such links do."""
    target = PurePosixPath(member.linkname)
    if not member.issym() or target.is_absolute() or ".." in target.parts:
        return False
    _check_path(member.linkname)
    return True


def _check_path(path: str) -> None:
    """Refuse a path that no system call takes.

    Raises:
        UnusableError: it is empty or too long, or has a NUL.
    """
    name = path.encode("utf-8", "surrogateescape")
    if not 0 < len(name) <= MAX_PATH or max(map(len, name.split(b"/"))) > MAX_NAME or b"\0" in name:
        raise _unreadable(f"the path {_shown(path)} of {len(name)} bytes is none that Linux takes")


def _shown(name: str) -> str:
    return ascii(name[:MAX_SHOWN]) + ("..." if len(name) > MAX_SHOWN else "")


def _unreadable(why: str) -> UnusableError:
    return UnusableError(f"the working directory could not be read: {why}")
