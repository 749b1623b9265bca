"""What a pool has on its machine, seen from outside of it: processes, open files, control groups, temporary files, records.

Guarantees: only what belongs to the pool in question is counted, whatever else runs on the machine. Reads only.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentrl.processes import Mark, mark_of
from agentrl.sandbox import cgroups
from benchmarks.env_parts.servers import RUN_VARIABLE, Server


@dataclass(frozen=True)
class Traces:
    """What a pool has besides itself.

    Attributes:
        processes: below it, or started by it and adopted by another; zombies below it too.
        control_groups: folders of them.
        temporary_files: names in its temporary folder.
        ledger_rows: process groups in its ledger.
    """

    processes: int
    control_groups: int
    temporary_files: int
    ledger_rows: int

    @classmethod
    def of(cls, server: Server, ledger: Path) -> Traces:
        """Count now."""
        pid = server.process.pid
        below = set(descendants(pid))
        adopted = {each for each in carriers_of(server.run) if each != pid}
        return cls(
            len(below | adopted),
            control_groups(pid),
            len(list(server.temporary.iterdir())),
            len(recorded_groups(ledger)),
        )


def descendants(pid: int) -> Iterator[int]:
    """Yield the processes below one, zombies included."""
    children: dict[int, list[int]] = {}
    for each, fields in _all():
        children.setdefault(int(fields[1]), []).append(each)
    todo = [pid]
    while todo:
        found = children.get(todo.pop(), [])
        yield from found
        todo += found


def sleepers(pid: int) -> int:
    """Return how many processes below one run `sleep`."""
    return sum(_name(each) == "sleep" for each in descendants(pid))


def marks_below(pid: int) -> list[Mark]:
    """Return what tells the processes below one from later ones; those that have ended are left out."""
    return [mark for each in descendants(pid) if (mark := mark_of(each)) is not None]


def carriers_of(run: str) -> Iterator[int]:
    """Yield the processes that carry the name of a run in their environment; zombies have none."""
    wanted = f"{RUN_VARIABLE}={run}".encode()
    for pid, _ in _all():
        try:
            variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        if wanted in variables:
            yield pid


def control_groups(pid: int) -> int:
    """Return the number of folders of control groups that a process made for sandboxes."""
    named = (
        cgroups.NAME.fullmatch(each.name)
        for parent in set(cgroups.find().parents.values())
        for each in parent.iterdir()
    )
    return sum(found is not None and int(found[2]) == pid for found in named)


def recorded_groups(ledger: Path) -> list[tuple[str, int]]:
    """Return the owner's secret and the leader of each process group in a ledger that a pool may be using."""
    rows = sqlite3.connect(f"file:{ledger}?mode=ro", uri=True)
    try:
        return rows.execute("SELECT secret, pid FROM groups").fetchall()
    finally:
        rows.close()


def _all() -> Iterator[tuple[int, list[str]]]:
    """Yield all processes, with the fields of their state after the name."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                yield int(entry.name), Path(entry.path, "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
