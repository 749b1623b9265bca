"""The stdin and stdout of a program in a sandbox, as a stream of this process.

`SandboxStream` opens a door before the sandbox starts; the program itself comes with `start`. Guarantees: a door takes one
connection. The socket lies in a folder that only this user enters, and goes with `close`.
"""

from __future__ import annotations

import asyncio
import shutil
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

from agentrl.exceptions import InfraError
from agentrl.sandbox.interface import Door, ExecResult, Sandbox
from agentrl.sandbox.supervised import ROOT_INSIDE
from agentrl.sandbox.unix_socket import bound_at

FIRST_PORT = 21_000
RUN = (
    f"import sys; sys.path.insert(0, '{ROOT_INSIDE}'); from agentrl.sandbox.inside.stream import main; sys.exit(main())"
)
CONNECT_SECONDS = 60.0
MAX_ERRORS = 2000
LINE_BYTES = 1 << 24
"""Most bytes of a line."""


def door_prefix(pool: str) -> str:
    """Return how the names of the folders with a pool's doors begin."""
    return f"agentrl-door-{pool}-"


def sweep_doors(pool: str) -> int:
    """Remove the doors that a killed server of this pool left; return how many. No two servers use a pool at a time."""
    left = list(Path(gettempdir()).glob(f"{door_prefix(pool)}*"))
    for folder in left:
        shutil.rmtree(folder)
    return len(left)


class SandboxStream:
    """One program; call `open` before the sandbox starts and `start` after it."""

    def __init__(self, number: int, pool: str) -> None:
        """Prepare.

        Args:
            number: of this program among those of the sandbox.
            pool: name of the pool, so that its next start removes what a crash leaves.
        """
        self._folder = TemporaryDirectory(prefix=door_prefix(pool))
        self._path = Path(self._folder.name) / f"{number}.sock"
        self._port = FIRST_PORT + number
        self._taken: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]]
        self._server: asyncio.Server | None = None
        self._running: asyncio.Task[ExecResult] | None = None

    async def open(self) -> Door:
        """Listen; return the door for `agentrl.sandbox.interface.SandboxSpec`."""
        self._taken = asyncio.get_running_loop().create_future()
        listening = bound_at(self._path)
        self._path.chmod(0o600)
        self._server = await asyncio.start_unix_server(self._take, sock=listening, limit=LINE_BYTES)
        return Door(self._port, self._path)

    async def start(
        self, sandbox: Sandbox, argv: list[str], env: dict[str, str], seconds: float
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Start the program, and return what it writes and what it reads.

        Args:
            sandbox: that was started with the door.
            argv: the program and its arguments.
            env: its variables.
            seconds: the longest that it may run.

        Raises:
            InfraError: it ended before it was connected; the message has what it printed.
        """
        command = ["python3", "-I", "-S", "-B", "-c", RUN, str(self._port), *argv]
        self._running = asyncio.create_task(
            sandbox.execute(command, timeout_s=seconds, env=env, most_output=MAX_ERRORS)
        )
        await asyncio.wait({self._running, self._taken}, timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if self._taken.done():
            return self._taken.result()
        said = await self.ended() or "it printed nothing"
        raise InfraError(f"{argv[0]} does not start: {said}", code="program_lost")

    async def ended(self) -> str:
        """End the program; return what it printed to stderr."""
        if self._running is None:
            return "it was never started"
        if not self._running.done():
            self._running.cancel()
        with suppress(asyncio.CancelledError, InfraError):
            return (await self._running).output.decode(errors="replace").strip()
        return "it was ended"

    async def close(self) -> None:
        """End the program and close the door; a second call does nothing."""
        await self.ended()
        if self._server is not None:
            if self._taken.done():
                self._taken.result()[1].close()
            self._server.close()
            self._server = None
        with suppress(OSError):
            self._folder.cleanup()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._taken.done():
            writer.close()
            return
        self._taken.set_result((reader, writer))
