"""The processes of one lease: started by its environment, ended by the pool.

Guarantee: a program starts only after its process group is in the ledger. The process waits at a gate, a pipe whose other
end this server holds, until then; if the server dies first, the process ends without having run the program.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from asyncio.subprocess import Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from agentrl.exceptions import InfraError
from agentrl.processes.ending import end
from agentrl.processes.ledger import Group, ProcessLedger
from agentrl.processes.marks import OWNER_VARIABLE, mark_of

GATE = 'gate=$1; shift; read -r -N1 -u "$gate" || exit 75; exec {gate}<&-; exec "$@"'
Stream = int | IO[bytes] | None
LINE_BYTES = 1 << 16


class Processes:
    """Starts processes for one lease; each leads a process group of its own."""

    def __init__(self, ledger: ProcessLedger) -> None:
        self._ledger = ledger
        self._secret = secrets.token_hex(16)
        self._groups: list[Group] = []
        self._closed = False

    @property
    def pool(self) -> str:
        """Return the name of the pool that they belong to, the same after a crash; see `ProcessLedger`."""
        return self._ledger.pool

    async def spawn(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        stdin: Stream = asyncio.subprocess.DEVNULL,
        stdout: Stream = asyncio.subprocess.DEVNULL,
        stderr: Stream = asyncio.subprocess.DEVNULL,
        limit: int = LINE_BYTES,
        pass_fds: Sequence[int] = (),
    ) -> Process:
        """Start a program; a program that does not exist exits with status 127.

        Args:
            argv: the program and its arguments.
            env: its whole environment; the server's own, which holds its key, is not inherited.
            cwd: folder that it runs in.
            stdin: as in `asyncio.create_subprocess_exec`, and so are ``stdout`` and ``stderr``.
            limit: most bytes of a line that `readline` of a pipe returns.
            pass_fds: descriptors that it gets, by the same numbers.

        Raises:
            InfraError: the lease is closing, or the process did not start.
        """
        self._check_open()
        read_end, write_end = os.pipe()
        try:
            process = await asyncio.create_subprocess_exec(
                *("/bin/bash", "-p", "-c", GATE, "gate", str(read_end), *map(str, argv)),
                env={**env, OWNER_VARIABLE: self._secret},
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                limit=limit,
                start_new_session=True,
                pass_fds=(read_end, *pass_fds),
            )
            self._check_open()
            if (mark := mark_of(process.pid)) is None:
                raise InfraError(f"{argv[0]} ended before it began", code="process_lost")
            group = Group(self._secret, mark)
            self._groups.append(group)
            await self._ledger.add(group)
            self._check_open()
            os.write(write_end, b"1")
            return process
        except OSError as error:
            raise InfraError(f"{argv[0]} did not start: {error.strerror}", code="process_lost") from error
        finally:
            os.close(read_end)
            os.close(write_end)

    async def end(self) -> int:
        """End all processes and start no more; return the number of groups that still exist."""
        self._closed = True
        groups = list(self._groups)
        left = await end(groups)
        gone = [group for group in groups if group not in left]
        if gone:
            await self._ledger.remove(gone)
        self._groups = [group for group in self._groups if group not in gone]
        return len(self._groups)

    def _check_open(self) -> None:
        if self._closed:
            raise InfraError("the lease is closing; start no more processes", code="closing")


async def end_leftovers(ledger: ProcessLedger) -> int:
    """End what a crashed server left, and forget it; return how many groups there were.

    Raises:
        InfraError: a process survives SIGKILL; its group stays in the ledger.
    """
    groups = await ledger.groups()
    left = await end(groups)
    await ledger.remove([group for group in groups if group not in left])
    if left:
        pids = ", ".join(str(group.leader.pid) for group in left)
        raise InfraError(f"process groups {pids} of an earlier server do not end; look at them", code="leftovers")
    return len(groups)
