"""Bounds of all processes of a sandbox together, by control groups of version 1 or 2.

Guarantees: a group is there before the sandbox starts, and its commands enter it; what serves them stays outside. `Group.remove` returns when its processes and folders are
gone. The name of a group tells the server that made it, so that `sweep` removes what dead servers left, and only that.
The groups lie below this process's own where the kernel allows that, so they count against its bounds too.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from agentrl.exceptions import InfraError
from agentrl.processes import mark_of
from agentrl.sandbox.interface import Limits

CONTROLLERS = ("memory", "pids", "cpu")
PERIOD_US = 100_000
NAME = re.compile(r"agentrl-(\d+)-(\d+)-(\d+)-[0-9a-f]+")
REMOVED_SECONDS = 5.0
POLL_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Places:
    """The folder of each controller in which this process may make groups, and its version."""

    version: int
    parents: Mapping[str, Path]


@dataclass(frozen=True, slots=True)
class Group:
    """A group: one folder for each hierarchy."""

    folders: tuple[Path, ...]

    def entrances(self) -> list[str]:
        """Return the files that a process writes its id, or 0 for itself, to, to enter."""
        return [str(folder / "cgroup.procs") for folder in self.folders]

    async def remove(self) -> None:
        """Kill what is in the group and remove it; a second call does nothing.

        Raises:
            InfraError: a process survives.
        """
        deadline = time.monotonic() + REMOVED_SECONDS
        left = list(self.folders)
        while left := [folder for folder in left if not _removed(folder)]:
            if time.monotonic() > deadline:
                raise InfraError(f"processes in {left[0]} do not end; look at them", code="leftovers")
            await asyncio.sleep(POLL_SECONDS)


def find(process: Path = Path("/proc/self")) -> Places:
    """Return where groups can be made; without any controller if nowhere."""
    mounts = list(_mounts((process / "mountinfo").read_text()))
    parents: dict[str, Path] = {}
    for line in (process / "cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        for name in [part for part in names.split(",") if part in CONTROLLERS]:
            for kind, options, root, point in mounts:
                if kind == "cgroup" and name in options and _usable(folder := _below(point, root, path)):
                    parents[name] = folder
        if not names and not parents:
            for kind, _, root, point in mounts:
                if kind == "cgroup2":
                    own = _below(point, root, path)
                    if result := _delegated(own, point):
                        return Places(2, result)
    return Places(1, parents)


def make(places: Places, limits: Limits) -> Group:
    """Make a group with these bounds; a controller that is not there bounds nothing.

    Raises:
        InfraError: the kernel refuses.
    """
    # Files on a tmpfs are memory of whoever wrote them.
    memory = (limits.memory_mib + limits.disk_mib) * 2**20
    pids = limits.processes
    quota = max(1000, int(limits.cpus * PERIOD_US))
    settings = {
        (1, "memory"): {"memory.limit_in_bytes": memory, "memory.memsw.limit_in_bytes": memory},
        (1, "pids"): {"pids.max": pids},
        (1, "cpu"): {"cpu.cfs_period_us": PERIOD_US, "cpu.cfs_quota_us": quota},
        (2, "memory"): {"memory.max": memory, "memory.swap.max": 0},
        (2, "pids"): {"pids.max": pids},
        (2, "cpu"): {"cpu.max": f"{quota} {PERIOD_US}"},
    }
    name = f"{_own_prefix()}-{secrets.token_hex(8)}"
    folders = dict.fromkeys(parent / name for parent in places.parents.values())
    try:
        for folder in folders:
            folder.mkdir()
        for controller, parent in places.parents.items():
            for file, value in settings[places.version, controller].items():
                # A kernel may count no swap; the other bounds must be there.
                if (parent / name / file).exists() or "sw" not in file:
                    (parent / name / file).write_text(str(value))
    except OSError as error:
        for folder in folders:
            with suppress(OSError):
                folder.rmdir()
        raise InfraError(f"{error.filename} cannot be set: {error.strerror}", code="cgroup_refused") from error
    return Group(tuple(folders))


async def sweep(places: Places) -> int:
    """Remove the groups of servers that are dead; return how many there were."""
    dead: dict[str, list[Path]] = {}
    space, own = _own_prefix().split("-")[1], os.getpid()
    for parent in set(places.parents.values()):
        for folder in _all_below(_top(parent)):
            match = NAME.fullmatch(folder.name)
            if match is None or match[1] != space or int(match[2]) == own:
                continue
            mark = mark_of(int(match[2]))
            if mark is None or mark.ticks != int(match[3]):
                dead.setdefault(folder.name, []).append(folder)
    for folders in dead.values():
        await Group(tuple(folders)).remove()
    return len(dead)


def _own_prefix() -> str:
    """Return the mark of this process: its process namespace, its id and its start."""
    mark = mark_of(os.getpid())
    assert mark is not None
    return f"agentrl-{os.stat('/proc/self/ns/pid').st_ino}-{mark.pid}-{mark.ticks}"


def _removed(folder: Path) -> bool:
    """Kill what is in a folder, and try to remove it."""
    try:
        for pid in (folder / "cgroup.procs").read_text().split():
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _mounts(text: str) -> Iterator[tuple[str, list[str], str, Path]]:
    """Yield the type, the options, the root and the place of each mount."""
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        yield kind[0], kind[2].split(","), fields[3], Path(fields[4])


def _below(point: Path, root: str, path: str) -> Path:
    """Return the folder of a group, whose hierarchy's part below ``root`` is mounted at ``point``."""
    return point / os.path.relpath(path, root) if path.startswith(root.rstrip("/") + "/") or path == root else point


def _usable(folder: Path) -> bool:
    return os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)


def _delegated(own: Path, top: Path) -> dict[str, Path]:
    """Return the nearest group above (or this one) whose children get memory and pids, if this process may make some."""
    for folder in (own, *own.parents):
        with suppress(OSError):
            handed = (folder / "cgroup.subtree_control").read_text().split()
            if {"memory", "pids"} <= set(handed) and _usable(folder):
                return {name: folder for name in CONTROLLERS if name in handed}
        if folder == top:
            break
    return {}


def _top(folder: Path) -> Path:
    """Return the highest group of a hierarchy that is mounted here."""
    while (folder.parent / "cgroup.procs").exists():
        folder = folder.parent
    return folder


def _all_below(top: Path) -> Iterator[Path]:
    for folder, names, _ in os.walk(top):
        yield from (Path(folder) / name for name in names)
