"""What an agent left in its working directory, as data.

Guarantees: a snapshot holds plain files, folders and symbolic links that lead downwards only, so unpacking it in another
sandbox touches nothing but its working directory, and no path in it leads out of there. It is bounded in bytes and names. The
archive that the agent's sandbox sends is untrusted: it is parsed, never unpacked, on this machine.
"""

from __future__ import annotations

import asyncio
import io
import shlex
import tarfile
from collections.abc import Sequence
from pathlib import PurePosixPath

from agentrl.exceptions import InfraError, InvalidError
from agentrl.sandbox.interface import HOME, Sandbox

MOST_BYTES = 8 << 20
MOST_NAMES = 10_000
SECONDS = 60.0
PACK = ("tar", "--create", "--hard-dereference", "--ignore-failed-read", "--one-file-system", "--file=-")
UNPACK = ("tar", "--extract", "--preserve-permissions", "--no-same-owner", "--file=-")


class UnusableError(Exception):
    """What the agent left cannot be judged; its own doing."""


async def take(
    sandbox: Sandbox, *, most_bytes: int = MOST_BYTES, without: Sequence[str] = (), folder: str = HOME
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
        UnusableError: it is no archive, or has too many names.
    """
    result = io.BytesIO()
    kept: dict[str, bool] = {}
    try:
        with (
            tarfile.open(fileobj=io.BytesIO(packed), mode="r:") as source,
            tarfile.open(fileobj=result, mode="w", format=tarfile.PAX_FORMAT) as target,
        ):
            for number, member in enumerate(source):
                if number >= MOST_NAMES:
                    raise UnusableError(f"the working directory has more than {MOST_NAMES} names")
                name = PurePosixPath(member.name)
                inside = not name.is_absolute() and ".." not in name.parts and str(name) not in kept
                if not inside or not (member.isdir() or member.isreg() or _leads_down(member)):
                    continue
                kept[str(name)] = True
                _copy(source, target, member, str(name))
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise UnusableError(f"the working directory could not be read: {error}") from error
    return result.getvalue()


def _leads_down(member: tarfile.TarInfo) -> bool:
    """Return whether a link leads to a place below its own folder, whatever other such links do."""
    target = PurePosixPath(member.linkname)
    return member.issym() and not target.is_absolute() and ".." not in target.parts


def _copy(source: tarfile.TarFile, target: tarfile.TarFile, member: tarfile.TarInfo, name: str) -> None:
    """Copy a member without its owner, its times and its extra headers."""
    copy = tarfile.TarInfo(name)
    copy.type, copy.linkname, copy.mode = member.type, member.linkname, member.mode & 0o777
    if member.isreg():
        copy.type, copy.size = tarfile.REGTYPE, member.size
        target.addfile(copy, source.extractfile(member))
    else:
        target.addfile(copy)
