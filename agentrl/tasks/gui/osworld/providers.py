"""Starts virtual machines: QEMU in a container of Docker, or any cloud by a program of your own.

Guarantees: a machine belongs to one lease, and is ended with it. A machine is never handed on: the next episode gets one that
was reverted, and if that fails the episode has no start. What a killed pool left is ended by the next start of this pool.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import shutil
from asyncio.subprocess import PIPE
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from agentrl.exceptions import InfraError
from agentrl.processes import Processes
from agentrl.tasks.gui.osworld.settings import VmSettings

LABEL = "agentrl.vm"
PORT = 5000
START_S, END_S = 900.0, 120.0


@dataclass(frozen=True)
class Machine:
    """A machine that runs: its name for the provider, and the URL of its server."""

    id: str
    url: str


class VmProvider(Protocol):
    """Starts and ends machines of one kind."""

    async def start(self, processes: Processes, snapshot: str) -> Machine:
        """Start a machine of a lease.

        Raises:
            InfraError: it does not start.
        """
        ...

    async def revert(self, processes: Processes, machine: Machine, snapshot: str) -> Machine:
        """Return the machine, or another one, as it was at its start.

        Raises:
            InfraError: that failed; the machine is no longer used.
        """
        ...

    async def stop(self, processes: Processes, machine: Machine) -> None:
        """End a machine; one that is gone is fine.

        Raises:
            InfraError: it may still run.
        """
        ...

    async def sweep(self, processes: Processes) -> int:
        """End what an earlier server of the same pool left; return how many machines."""
        ...


class DockerVm:
    """QEMU in a container: image and disk by `VmSettings`."""

    def __init__(self, settings: VmSettings) -> None:
        """Prepare.

        Raises:
            InfraError: there is no engine, or no disk.
        """
        self._settings = settings
        engine = shutil.which(settings.engine)
        if engine is None:
            raise InfraError(
                f"there is no {settings.engine}; install it, or use GUI_PROVIDER_NAME=command", code="no_vm"
            )
        if settings.disk is None or not Path(settings.disk).is_file():
            raise InfraError(f"GUI_PATH_TO_VM={settings.disk} is not a disk of a machine; name its file", code="no_vm")
        self._engine = engine

    async def start(self, processes: Processes, snapshot: str) -> Machine:
        """See `VmProvider`; a snapshot is the disk itself, so there is only one."""
        options = self._settings
        kvm = ["--device", "/dev/kvm"] if Path("/dev/kvm").exists() else ["--env", "KVM=N"]
        assert options.disk is not None
        machine = f"agentrl-vm-{secrets.token_hex(8)}"
        words = ["run", "--detach", "--rm", "--name", machine, "--label", f"{LABEL}={processes.pool}"]
        words += ["--cap-add", "NET_ADMIN", *kvm]
        words += ["--publish", f"127.0.0.1::{PORT}", "--memory", f"{options.memory_mib}m", "--cpus", str(options.cpus)]
        words += ["--env", f"RAM_SIZE={options.memory_mib // 1024}G", "--env", f"CPU_CORES={options.cpus}"]
        words += ["--volume", f"{Path(options.disk).resolve()}:/System.qcow2:ro", options.image]
        try:
            await self._run(processes, words, START_S)
            address = (await self._run(processes, ["port", machine, str(PORT)], END_S)).split()[0]
        except BaseException:
            await self.stop(processes, Machine(machine, ""))
            raise
        return Machine(machine, f"http://127.0.0.1:{address.rpartition(':')[2]}")

    async def revert(self, processes: Processes, machine: Machine, snapshot: str) -> Machine:
        """See `VmProvider`: the disk is read-only, so a new container is the old state."""
        await self.stop(processes, machine)
        return await self.start(processes, snapshot)

    async def stop(self, processes: Processes, machine: Machine) -> None:
        """See `VmProvider`."""
        await self._run(processes, ["rm", "--force", machine.id], END_S)

    async def sweep(self, processes: Processes) -> int:
        """See `VmProvider`."""
        asked = ["ps", "--all", "--quiet", "--filter", f"label={LABEL}={processes.pool}"]
        left = (await self._run(processes, asked, END_S)).split()
        if left:
            await self._run(processes, ["rm", "--force", *left], END_S)
        return len(left)

    async def _run(self, processes: Processes, words: Sequence[str], seconds: float) -> str:
        return await run([self._engine, *words], processes, seconds)


class CommandVm:
    """A program that speaks for a cloud: ``start POOL SNAPSHOT`` and ``revert ID SNAPSHOT`` print ``{"id", "url"}``,
    ``stop ID`` ends a machine, ``sweep POOL`` prints how many it ended."""

    def __init__(self, program: str) -> None:
        """Prepare.

        Raises:
            InfraError: there is no such program.
        """
        result = shutil.which(program)
        if result is None:
            raise InfraError(f"GUI_VM_COMMAND={program} is not a program; name one that starts machines", code="no_vm")
        self._program = result

    async def start(self, processes: Processes, snapshot: str) -> Machine:
        """See `VmProvider`."""
        return await self._machine(processes, ["start", processes.pool, snapshot])

    async def revert(self, processes: Processes, machine: Machine, snapshot: str) -> Machine:
        """See `VmProvider`."""
        return await self._machine(processes, ["revert", machine.id, snapshot])

    async def stop(self, processes: Processes, machine: Machine) -> None:
        """See `VmProvider`."""
        await run([self._program, "stop", machine.id], processes, END_S)

    async def sweep(self, processes: Processes) -> int:
        """See `VmProvider`."""
        return int(await run([self._program, "sweep", processes.pool], processes, END_S) or 0)

    async def _machine(self, processes: Processes, words: Sequence[str]) -> Machine:
        said = await run([self._program, *words], processes, START_S)
        try:
            made = json.loads(said)
            return Machine(str(made["id"]), str(made["url"]))
        except (ValueError, KeyError, TypeError) as error:
            raise InfraError(
                f"{self._program} {words[0]} printed {said[:200]!r}, not id and url", code="no_vm"
            ) from error


async def run(argv: Sequence[str], processes: Processes, seconds: float) -> str:
    """Return what a program prints.

    Raises:
        InfraError: it fails, or takes longer.
    """
    process = await processes.spawn(argv, env={**_environment()}, stdout=PIPE, stderr=PIPE)
    try:
        async with asyncio.timeout(seconds):
            said, errors = await process.communicate()
    except TimeoutError as error:
        process.kill()
        raise InfraError(f"{argv[0]} {argv[1]} took longer than {seconds:g} s", code="no_vm") from error
    if process.returncode:
        raise InfraError(f"{argv[0]} {argv[1]}: {errors.decode(errors='replace').strip()[-500:]}", code="no_vm")
    return said.decode(errors="replace")


def _environment() -> dict[str, str]:
    """Return what such a program needs of the pool's environment: paths, and the variables of its cloud."""
    kept = ("PATH", "HOME", "DOCKER_HOST")
    clouds = ("AWS_", "AZURE_", "ALIYUN_", "VOLCENGINE_", "GUI_VM_")
    return {name: value for name, value in os.environ.items() if name in kept or name.startswith(clouds)}


def provider_of(settings: VmSettings) -> VmProvider:
    """Return the provider that the settings name.

    Raises:
        InfraError: it cannot work here.
    """
    return CommandVm(settings.command or "") if settings.provider == "command" else DockerVm(settings)
