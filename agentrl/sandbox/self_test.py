"""Proves on this machine what a sandbox promises: starts one and looks out of it, and leans on its bounds.

Guarantee: a promise holds only if the program inside said so; one that cannot be tried does not hold.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from agentrl.processes import Processes, ProcessLedger
from agentrl.sandbox.interface import Limits, Sandbox, SandboxSpec
from agentrl.sandbox.seccomp import INET, INET6, NETLINK, UNIX, refused_calls
from agentrl.sandbox.supervised import ENVIRONMENT

REPOSITORY = Path(__file__).resolve().parents[2]
LIMITS = Limits(memory_mib=64, cpus=1.0, processes=32, disk_mib=16, open_files=64)
PATIENCE_SECONDS = 60.0
MAX_PROCESSES_SEEN = 8
MAX_TERMINALS = 24
"""Of one sandbox; the machine has 3,072 for all of them."""
LOOK = """
import ctypes, json, os, socket, sys
def caught(work):
    try:
        return work() or "allowed"
    except OSError as error:
        return type(error).__name__ + ": " + str(error.strerror or error)
def connect(address):
    with socket.socket() as door:
        door.settimeout(5)
        door.connect(address)
def namespace():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(0x10000000):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
def written(path):
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY))
def called(number):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    return ctypes.get_errno() if libc.syscall(number, *[ctypes.c_long(-1)] * 6) == -1 else 0
def opens(family, kind, protocol=0):
    try:
        socket.socket(family, kind, protocol).close()
    except PermissionError:
        return False
    except OSError:
        pass
    return True
def terminals():
    opened = []
    try:
        while len(opened) < 48:
            opened.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        pass
    for each in opened:
        os.close(each)
    return len(opened)
port, calls, *paths = sys.argv[1:]
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines())
print(json.dumps({
    "environment": sorted(os.environ),
    "interfaces": [line.split(":")[0].strip() for line in open("/proc/net/dev").read().splitlines()[2:]],
    "far": caught(lambda: connect(("192.0.2.1", 80))),
    "host": caught(lambda: connect(("127.0.0.1", int(port)))),
    "capabilities": [status[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "privileges": status["NoNewPrivs"],
    "namespace": caught(namespace),
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "filter": status.get("Seccomp", "none"),
    "calls": {name: called(number) for name, number in json.loads(calls).items()},
    "families": [number for number in range(1, 64) if any(opens(number, kind) for kind in (1, 2, 3, 5))],
    "netlink": [number for number in range(1, 32) if opens(16, 3, number)],
    "keys": caught(lambda: open("/proc/keys").read()),
    "terminals": terminals(),
    "supervisor": caught(lambda: os.listdir("/proc/1/fd")),
    "seen": [path for path in paths if os.path.lexists(path)],
    "writable": [path for path in ("/x", "/etc/x", "/usr/x", "/dev/x", "/run/x") if caught(lambda: written(path)) == "allowed"],
}))
"""
MEMORY = "print('begun', flush=True); kept = [b'x' * 2**20 for _ in range(256)]; print('allocated 256 MiB')"
PROCESSES = """
import os, signal
read, write = os.pipe()
children = []
try:
    while len(children) < 256:
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)
            os._exit(0)
        children.append(child)
except OSError:
    pass
os.close(write)
for child in children:
    os.waitpid(child, 0)
print(len(children))
"""
DISK = """
import os
try:
    with open(os.environ["HOME"] + "/big", "wb", buffering=0) as file:
        for _ in range(256):
            file.write(bytes(2**20))
except OSError as error:
    print(error.errno)
os.unlink(os.environ["HOME"] + "/big")
"""


@dataclass(frozen=True, slots=True)
class Promise:
    """What was promised, whether it holds, and what was found."""

    text: str
    holds: bool
    found: str


class Unchecked(Protocol):
    """A provider that starts a sandbox without having proved anything."""

    async def start_unchecked(self, spec: SandboxSpec, processes: Processes) -> Sandbox:
        """Start a sandbox."""
        ...


async def prove(provider: Unchecked, *, python: str = "/usr/bin/python3") -> list[Promise]:
    """Start a sandbox, try every promise, and stop it.

    Raises:
        InfraError: it does not start, with what to do about it.
    """
    async with _own_processes() as processes:
        with tempfile.TemporaryDirectory() as folder, socket.create_server(("127.0.0.1", 0)) as listening:
            secret = Path(folder) / "secret"
            secret.write_text("a file of the host")
            secret.chmod(0o644)
            sandbox = await provider.start_unchecked(SandboxSpec(limits=LIMITS), processes)
            try:
                paths = [str(secret), str(REPOSITORY), "/root", "/home", "/var", "/sys", "/etc/shadow"]
                calls = json.dumps(refused_calls())
                words = [str(listening.getsockname()[1]), calls, *paths]
                look = await sandbox.execute([python, "-I", "-c", LOOK, *words], timeout_s=PATIENCE_SECONDS)
                seen = _parsed(look.output)
                bounds = [
                    (await sandbox.execute([python, "-I", "-c", item], timeout_s=PATIENCE_SECONDS)).output.decode()
                    for item in (MEMORY, PROCESSES, DISK)
                ]
            finally:
                await sandbox.stop()
    return [*_outlook(seen), *_bounds(*bounds)]


def _outlook(seen: Mapping[str, Any]) -> list[Promise]:
    """Return what holds of the view from inside."""
    tries = {
        "no network": seen.get("interfaces") == ["lo"] and _refused(seen, "far"),
        "no port of the host": _refused(seen, "host"),
        "no variable of the host": "PATH" in seen.get("environment", ())
        and set(seen["environment"]) <= {*ENVIRONMENT, "PWD", "OLDPWD", "SHLVL", "_", "LC_CTYPE"},
        "no capability": bool(seen.get("capabilities")) and not any(int(item, 16) for item in seen["capabilities"]),
        "no new privileges": seen.get("privileges") == "1",
        "no nested user namespace": _refused(seen, "namespace"),
        "no process of the host": 0 < seen.get("processes", 0) <= MAX_PROCESSES_SEEN,
        "no way to the supervisor": _refused(seen, "supervisor"),
        "no keyring": _refused(seen, "keys") and seen.get("filter") == "2",
        "no call on what the kernel keeps for the whole machine": bool(seen.get("calls"))
        and set(seen["calls"].values()) <= {errno.EPERM, errno.ENOSYS},
        "no socket but Unix and internet ones": set(seen.get("families", [0])) <= {UNIX, INET, INET6, NETLINK}
        and seen.get("netlink") == [],
        "terminals are bounded": 0 < seen.get("terminals", 0) <= MAX_TERMINALS,
        "no file of the host": seen.get("seen") == [],
        "nothing writable but /work, /tmp and /dev/shm": seen.get("writable") == [],
    }
    return [Promise(text, holds, json.dumps(seen)) for text, holds in tries.items()]


def _bounds(memory: str, processes: str, disk: str) -> list[Promise]:
    """Return which bounds are real."""
    started = processes.strip()
    return [
        Promise(
            "memory is bounded",
            memory.startswith("begun") and "allocated" not in memory,
            memory.strip() or "the program did not begin",
        ),
        Promise(
            "processes are bounded",
            started.isdigit() and 0 < int(started) <= LIMITS.processes,
            f"{started or 'none'} started",
        ),
        Promise("disk is bounded", disk.strip() == str(errno.ENOSPC), disk.strip() or "256 MiB written"),
    ]


def _refused(seen: Mapping[str, Any], name: str) -> bool:
    return name in seen and seen[name] != "allowed" and not isinstance(seen[name], list)


def _parsed(output: bytes) -> dict[str, Any]:
    """Return what the program inside printed; nothing if it could not."""
    try:
        return dict(json.loads(output))
    except ValueError:
        return {"printed": output.decode(errors="replace")}


@asynccontextmanager
async def _own_processes() -> AsyncIterator[Processes]:
    """Yield processes of a ledger that exists for the proof only, and end them."""
    with tempfile.TemporaryDirectory() as folder:
        ledger = ProcessLedger(Path(folder) / f"{os.getpid()}.sqlite")
        processes = Processes(ledger)
        try:
            yield processes
        finally:
            await processes.end()
            ledger.close()
