"""One machine's part of a cluster of several: ``ray start`` as a child that ends with its owner.

Guarantees: when :func:`node_of_cluster` ends, however its owner ends, this machine's processes, temporary folder and
Ray shared memory are gone (`groundwork.janitor`). All machines need the same ``RAY_AUTH_TOKEN``, which is required and
never generated or written to a file.
"""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from groundwork.cleanup import entrust, start_janitor
from groundwork.exceptions import ConfigError
from groundwork.private_files import private, private_folder
from slime.arguments.cluster import missing_secret
from slime.arguments.process_environment import NOSET
from slime.exceptions import NodeError

RAY_SETTINGS = {
    **{"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DISABLE_DOCKER_CPU_WARNING": "1"},
    # Ray gives its workers niceness 15. Ours are the gateway, engines and trainer, which any other program would push aside.
    "RAY_worker_niceness": "0",
}
"""Of every Ray that we start."""
RAY_VARIABLES = RAY_SETTINGS | {NOSET: "0"}
"""Ray's settings on a machine, whatever its shell says."""
EXTRA_CPUS = 16
INSIDE = "r"
"""Folder for Ray inside of the private temporary one: Ray opens its own to everybody. Short, because socket paths are."""
CPU_OBJECT_STORE_BYTES = 512 * 2**20
_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Part:
    """A machine's part of the cluster.

    Attributes:
        head: ``address:port`` of the head.
        address: this machine's address, as seen by the others.
        is_head: whether this machine is the head.
        num_gpus: GPUs to offer; logical on a machine without GPUs.
        cpu: whether trainer and engines run on the CPU.
    """

    head: str
    address: str
    is_head: bool
    num_gpus: int
    cpu: bool


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; raise ConfigError for anything else."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigError(f"{address!r} is not an address of a head; write host:port")
    return host, int(port)


def resolved(address: str) -> str:
    """Return ``host:port`` with the host's IP address, as Ray uses it; raise NodeError for an unknown name."""
    host, port = split_address(address)
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError as error:
        raise NodeError(
            f"the head's name {host} cannot be resolved on this machine ({error.strerror or error}); give its IP address as "
            "MASTER_ADDR or --head-address, or add the name to /etc/hosts"
        ) from error


def is_known(address: str) -> bool:
    """Return whether the host of ``host:port`` is an address or a name that this machine resolves."""
    try:
        resolved(address)
    except NodeError:
        return False
    return True


def own_address(head: str) -> str:
    """Return the address of the interface that routes to ``host:port``; sends nothing."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(split_address(head))
        return probe.getsockname()[0]


def answers(head: str, seconds: float = 2.0) -> bool:
    """Return whether something listens at ``host:port``."""
    try:
        socket.create_connection(split_address(head), timeout=seconds).close()
    except OSError:
        return False
    return True


def check_token(environment: Mapping[str, str]) -> None:
    """Raise ConfigError unless the cluster's secret is set; Ray reads the mode on import."""
    if problem := missing_secret(environment):
        raise ConfigError(problem)


def start_command(part: Part, folder: Path) -> list[str]:
    """Return the blocking command that adds this machine to the cluster."""
    _, port = split_address(part.head)
    joins = (
        ["--head", "--port", str(port), "--include-dashboard", "false"] if part.is_head else ["--address", part.head]
    )
    store = ["--object-store-memory", str(CPU_OBJECT_STORE_BYTES)] if part.cpu else []
    return [
        *(sys.executable, "-c", "from ray.scripts.scripts import main; main()", "start", *joins),
        *("--node-ip-address", part.address, "--num-gpus", str(part.num_gpus)),
        *("--num-cpus", str(part.num_gpus + EXTRA_CPUS), *store),
        *("--temp-dir", str(folder), "--disable-usage-stats", "--block"),
    ]


@contextlib.contextmanager
def node_of_cluster(part: Part, environment: Mapping[str, str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Add this machine to the cluster for the length of the block; yield the blocking ``ray start``.

    Raises:
        NodeError: Ray does not start; the message has the end of its log.
    """
    check_token(environment)
    folder = Path(tempfile.mkdtemp(prefix="slime-ray-"))
    janitor = start_janitor(folder)
    private_folder(log.parent)
    try:
        with open(log, "ab", opener=private) as output:
            earlier = output.tell()
            child = subprocess.Popen(
                start_command(part, folder / INSIDE),
                env={**environment, **RAY_VARIABLES},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        family = [psutil.Process(child.pid)]
        try:
            entrust(janitor, family)
            _wait_until_up(child, log, earlier)
            family += family[0].children(recursive=True)
            entrust(janitor, family)
            yield child
        finally:
            _end(child, family)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        with janitor:
            janitor.kill()


def _wait_until_up(child: subprocess.Popen[bytes], log: Path, earlier: int) -> None:
    """Wait until ``log`` reports that Ray is up; skip the first ``earlier`` bytes, from an earlier run."""
    deadline = time.monotonic() + _START_SECONDS
    while child.poll() is None and time.monotonic() < deadline:
        if b"Ray runtime started" in log.read_bytes()[earlier:]:
            return
        time.sleep(_POLL_SECONDS)
    tail = " ".join(log.read_bytes()[earlier:].decode(errors="replace").split())[-500:]
    raise NodeError(f"Ray did not start on this machine; {log} ends with: {tail}")


def _end(child: subprocess.Popen[bytes], family: Sequence[psutil.Process]) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        family = [*family, *family[0].children(recursive=True)]
    child.terminate()
    for process in psutil.wait_procs(family, timeout=_STOP_SECONDS)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    child.wait()
