"""Start bubblewrap sandboxes in tests, and look at what is left of them."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.interface import ExecResult, Limits, SandboxSpec
from agentrl.sandbox.supervised import SupervisedSandbox

SMALL = Limits(memory_mib=96, cpus=1.0, processes=48, disk_mib=32, open_files=128)
SMALL_SPEC = SandboxSpec(limits=SMALL)
PATIENT_S = 60.0
"""For a command that ends by itself; a busy machine may take its time."""
REASON = "no bubblewrap 0.8 and /usr/bin/python3 here; run scripts/setup_bubblewrap.sh as root"


def memory_marks(repository: Path, provider: Bubblewrap, needs: str) -> list[pytest.MarkDecorator]:
    """Return the marks of tests whose programs a sandbox has to bound in memory; ``needs``: who needs it, and the verb."""
    reason = f"{needs} control groups for memory; run the tests where some can be made, see instructions/sandbox.md"
    return [
        pytest.mark.skipif(not installed(repository), reason=REASON),
        pytest.mark.skipif("memory" not in provider.places.parents, reason=reason),
    ]


def installed(repository: Path) -> bool:
    """Return whether sandboxes can be started here."""
    script = repository / "scripts" / "setup_bubblewrap.sh"
    return subprocess.run([script, "--check"], check=False).returncode == 0


@asynccontextmanager
async def processes_that_end(folder: Path) -> AsyncIterator[Processes]:
    """Own processes of which none is left at the end of the block, nor is one to be ended then."""
    ledger = ProcessLedger(folder / "ledger.sqlite")
    processes = Processes(ledger)
    try:
        yield processes
    finally:
        assert await processes.end() == 0
        assert await ledger.groups() == []
        ledger.close()


@asynccontextmanager
async def sandbox(
    provider: Bubblewrap, folder: Path, spec: SandboxSpec = SMALL_SPEC
) -> AsyncIterator[SupervisedSandbox]:
    """Start a sandbox, and stop it."""
    async with processes_that_end(folder) as processes:
        started = await provider.start_unchecked(spec, processes)
        try:
            yield started
        finally:
            await started.stop()


async def line(box: SupervisedSandbox, text: str, **settings: Any) -> ExecResult:
    """Run a line of bash."""
    return await box.execute(["bash", "-c", text], **{"timeout_s": PATIENT_S, **settings})


async def python(box: SupervisedSandbox, text: str, **settings: Any) -> ExecResult:
    """Run a program of Python."""
    return await box.execute(["/usr/bin/python3", "-I", "-c", text], **{"timeout_s": PATIENT_S, **settings})


def groups_of(provider: Bubblewrap, server: int) -> set[str]:
    """Return the names of the control groups of a server's sandboxes, given its process id; other servers may have theirs."""
    found: set[str] = set()
    for parent in provider.places.parents.values():
        found |= {each.name for each in parent.glob(f"agentrl-*-{server}-*")}
    return found


def running(mark: str) -> list[int]:
    """Return the processes of this machine with a text in their command line."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue
    return found
