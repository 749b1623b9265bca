"""A pool and a router as the real commands, and a pool in this process without sockets.

Guarantee: a process ends with its block, and its ledger lies in the folder that the caller owns.
"""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry

from agentrl.client import InProcessLeases
from agentrl.environment import Registry, Weight, load_environment
from agentrl.leases.metrics import PoolMetrics
from agentrl.leases.pool import Capacity, Pool
from agentrl.processes import ProcessLedger
from benchmarks.machine import REPOSITORY

PACKAGE = "benchmarks.env_parts.sandboxes"
LISTENING = re.compile(r"listening on (http://\S+)")
TICKS = os.sysconf("SC_CLK_TCK")
END_S = 60.0
RUN_VARIABLE = "AGENTRL_BENCHMARK_RUN"
"""Environment variable of a server, and of the programs that `benchmarks.env_parts.sandboxes` starts in it."""
ROOM = Weight(1 << 20, 1e6)
"""Slots bound the number of environments here, and nothing else does."""


@dataclass(frozen=True)
class Server:
    """A running command, its address, its value of `RUN_VARIABLE`, and its folder for temporary files."""

    process: subprocess.Popen[str]
    url: str
    run: str
    temporary: Path

    def cpu_seconds(self) -> float:
        """Return the processor time of the process itself."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def children_cpu_seconds(self) -> float:
        """Return the processor time of its children that have ended."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[13]) + int(fields[14])) / TICKS

    def memory_mib(self) -> float:
        """Return its resident memory."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def peak_memory_mib(self) -> float:
        """Return the most resident memory that it ever had."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))

    def open_files(self) -> int:
        """Return the number of its file descriptors."""
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))


@contextmanager
def started(module: str, *words: str | Path, temporary: Path | None = None) -> Iterator[Server]:
    """Run ``python -m MODULE`` on a free port until the block ends.

    Args:
        module: with a command line that has ``--port``.
        words: of the command line besides.
        temporary: folder for temporary files, which is made if it is not there (default: the usual one).

    Raises:
        RuntimeError: it does not listen; its own message is on standard error.
    """
    run, folder = secrets.token_hex(8), temporary or Path(tempfile.gettempdir())
    folder.mkdir(exist_ok=True)
    path = os.pathsep.join(map(str, (REPOSITORY, REPOSITORY / "slime")))
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--port", "0", *map(str, words)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": path, RUN_VARIABLE: run, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=None if os.environ.get("AGENTRL_BENCHMARK_LOG") else subprocess.DEVNULL,
        text=True,
    )
    try:
        assert process.stdout is not None
        if (found := LISTENING.search(process.stdout.readline())) is None:
            raise RuntimeError(f"{module} {' '.join(map(str, words))} ended with status {process.wait()}")
        yield Server(process, found[1], run, folder)
    finally:
        process.terminate()
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def pool_words(ledger: Path, slots: int, environments: Sequence[str]) -> list[str | Path]:
    """Return the options of a pool that lends out classes of `environments`."""
    named = [word for name in environments for word in ("--env", name if "." in name else f"{PACKAGE}.{name}")]
    room = ["--memory-mib", str(ROOM.memory_mib), "--cpu", str(ROOM.cpu)]
    return [*named, *room, "--slots", str(slots), "--ledger", ledger]


@asynccontextmanager
async def in_process(ledger: Path, slots: int, environments: Sequence[str]) -> AsyncIterator[InProcessLeases]:
    """Lend out from this process, within the block."""
    rows = ProcessLedger(ledger)
    registry = Registry(load_environment(name if "." in name else f"{PACKAGE}.{name}") for name in environments)
    pool = Pool(registry, Capacity(slots, ROOM), rows, PoolMetrics(CollectorRegistry()))
    await pool.start()
    try:
        yield InProcessLeases(pool)
    finally:
        await pool.stop(END_S)
        rows.close()
