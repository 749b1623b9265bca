"""Chromium, or its driver, in a sandbox, with a loopback port of this machine that leads to it.

Guarantees: the browser has no network and sees the folders that it is told, read-only, besides those of every sandbox. The
port takes as many connections as were asked for, from this machine only. `WalledProgram.stop` ends all of it, and so does
the end of the pool.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from pathlib import Path

from agentrl.exceptions import InfraError, InvalidError
from agentrl.processes import Processes
from agentrl.sandbox.interface import HOME, ExecResult, Limits, Mount, Provider, Sandbox, SandboxSpec
from agentrl.sandbox.streams import SandboxStream

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BINARIES = ("/usr/lib/chromium/chromium", "/usr/lib/chromium-browser/chromium-browser")
"""What Debian's scripts of these names start; the scripts want more of the machine than a sandbox shows."""
MISSING = "there is no Chromium on this machine; install it with scripts/setup_chromium.sh"
LIMITS = Limits(memory_mib=1536, cpus=2.0, processes=512, disk_mib=512)
PROFILE = f"{HOME}/profile"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--no-default-browser-check",
    "--no-proxy-server",
    "--disable-extensions",
    "--disable-sync",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-breakpad",
    "--disable-crash-reporter",
    "--disable-features=Translate,MediaRouter,OptimizationHints",
    "--force-color-profile=srgb",
    "--font-render-hinting=none",
    "--hide-scrollbars",
    "--mute-audio",
    "--password-store=basic",
    f"--user-data-dir={PROFILE}",
)
"""``--no-sandbox`` switches off Chromium's own sandbox, which cannot nest in ours."""
MAX_SECONDS = 7200.0
START_S, POLL_SECONDS = 60.0, 0.05
LINK = """
import os, socket, sys, threading, time
deadline = time.monotonic() + 60
while True:
    try:
        there = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
        break
    except OSError:
        if time.monotonic() > deadline:
            sys.exit("nothing listens inside")
        time.sleep(0.02)
def out():
    while data := there.recv(65536):
        while data:
            data = data[os.write(1, data):]
    os._exit(0)
threading.Thread(target=out, daemon=True).start()
while data := os.read(0, 65536):
    there.sendall(data)
"""
CHUNK = 1 << 16


def find_chromium() -> str:
    """Return the path of Chromium's program.

    Raises:
        InfraError: there is none.
    """
    chromium = next((path for path in BINARIES if Path(path).is_file()), None)
    chromium = chromium or next((path for path in map(shutil.which, NAMES) if path), None)
    if chromium is None:
        raise InfraError(MISSING, code="no_chromium")
    return chromium


class WalledProgram:
    """One program in a sandbox, and the way to its port."""

    def __init__(self, provider: Provider, processes: Processes) -> None:
        self._provider = provider
        self._processes = processes
        self._closing = AsyncExitStack()
        self._sandbox: Sandbox | None = None
        self._running: asyncio.Task[ExecResult] | None = None
        self._free: list[SandboxStream] = []
        self._links: set[asyncio.Task[None]] = set()
        self.port = self.port_inside = 0

    async def start(self, argv: Sequence[str], port: int, mounts: Sequence[Mount], connections: int) -> None:
        """Start a program that listens inside, and open `WalledProgram.port` here.

        Args:
            argv: the program and its arguments.
            port: on which it listens; 0 if `WalledProgram.port_inside` is set later, before anything connects.
            mounts: folders that it reads.
            connections: that the port takes in all.

        Raises:
            InfraError: it does not start.
        """
        streams = [SandboxStream(number, self._processes.pool) for number in range(connections)]
        doors = []
        for stream in streams:
            self._closing.push_async_callback(stream.close)
            doors.append(await stream.open())
        spec = SandboxSpec(limits=LIMITS, mounts=mounts, doors=doors)
        self._sandbox = sandbox = await self._provider.start(spec, self._processes)
        self._closing.push_async_callback(sandbox.stop)
        self._running = asyncio.create_task(sandbox.execute(argv, timeout_s=MAX_SECONDS, most_output=8192))
        self._free = streams
        self.port_inside = port
        server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self._closing.callback(server.close)
        self.port = server.sockets[0].getsockname()[1]

    async def read_file(self, path: str) -> str:
        """Return a file inside, once it is there and has a last line.

        Raises:
            InfraError: the program ended, or does not write it.
        """
        assert self._sandbox is not None
        deadline = asyncio.get_running_loop().time() + START_S
        while asyncio.get_running_loop().time() < deadline:
            self.check()
            with suppress(InvalidError):
                text = (await self._sandbox.read_file(path)).decode()
                if "\n" in text:
                    return text
            await asyncio.sleep(POLL_SECONDS)
        raise InfraError(f"the browser did not write {path} within {START_S:g} s", code="browser_lost")

    def ends(self) -> list[asyncio.Task[ExecResult]]:
        """Return the task that is done when the program has ended; none before `start`."""
        return [] if self._running is None else [self._running]

    def check(self) -> None:
        """Raise InfraError if the program has ended."""
        if self._running is not None and self._running.done():
            if self._running.cancelled() or self._running.exception() is not None:
                raise InfraError("the browser's sandbox is gone", code="browser_lost")
            ended = self._running.result()
            said = ended.output.decode(errors="replace")[-2000:]
            raise InfraError(f"the browser ended with status {ended.exit_code}: {said}", code="browser_lost")

    async def stop(self) -> None:
        """End everything; a second call does nothing."""
        for link in self._links:
            link.cancel()
        if self._running is not None:
            self._running.cancel()
        await asyncio.gather(*self._links, *filter(None, [self._running]), return_exceptions=True)
        await self._closing.aclose()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._free:
            writer.close()
            return
        link = asyncio.create_task(self._link(self._free.pop(0), reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _link(self, stream: SandboxStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert self._sandbox is not None
        try:
            argv = ["python3", "-I", "-S", "-c", LINK, str(self.port_inside)]
            far_reader, far_writer = await stream.start(self._sandbox, argv, {}, MAX_SECONDS)
            ways = [_carry(reader, far_writer), _carry(far_reader, writer)]
            tasks = [asyncio.create_task(way) for way in ways]
            try:
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        except InfraError:
            return  # the library sees a connection that ends
        finally:
            writer.close()


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK):
            writer.write(data)
            await writer.drain()
