"""One machine's part of a cluster of several: ``ray start`` as a child that ends with its owner.

Guarantees: the processes, the temporary folder and Ray's shared memory of this machine are gone when :func:`node_of_cluster`
ends, however its owner ends (`slime.utils.janitor`). Who joins must have the same ``RAY_AUTH_TOKEN``, which is asked for and never
made up or written to a file.
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

from slime.arguments.machines import missing_secret
from slime.arguments.process_environment import NOSET
from slime.exceptions import ConfigurationError, NodeError
from slime.utils.cleanup import entrust, start_janitor

RAY_VARIABLES = {"RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0", "RAY_DISABLE_DOCKER_CPU_WARNING": "1", NOSET: "0"}
"""What Ray starts with on a machine, whatever its shell says."""
EXTRA_CPUS = 16
CPU_OBJECT_STORE_BYTES = 512 * 2**20
_START_SECONDS = 120.0
_STOP_SECONDS = 10.0
_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Part:
    """What a machine brings.

    Attributes:
        head: ``address:port`` of the head.
        address: of this machine, as the others reach it.
        is_head: whether this machine is the head.
        num_gpus: logical on a machine without any.
        cpu: whether trainer and engines run on the CPU.
    """

    head: str
    address: str
    is_head: bool
    num_gpus: int
    cpu: bool


def split_address(address: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; raises ConfigurationError for anything else."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit():
        raise ConfigurationError(f"{address!r} is no address of a head; write host:port")
    return host, int(port)


def resolved(address: str) -> str:
    """Return ``host:port`` with the host's IP address, which is what Ray's nodes are known by; raises NodeError for an unknown name."""
    host, port = split_address(address)
    try:
        return f"{socket.gethostbyname(host)}:{port}"
    except OSError as error:
        raise NodeError(
            f"the head's name {host} is not known on this machine ({error.strerror or error}); give its IP address as "
            "MASTER_ADDR or --head-address, or add the name to /etc/hosts"
        ) from error


def is_known(address: str) -> bool:
    """Whether the host of ``host:port`` is an address, or a name that this machine knows."""
    try:
        resolved(address)
    except NodeError:
        return False
    return True


def own_address(head: str) -> str:
    """Return the address of the interface through which this machine reaches ``host:port``; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(split_address(head))
        return probe.getsockname()[0]


def answers(head: str, seconds: float = 2.0) -> bool:
    """Whether something listens at ``host:port``."""
    try:
        socket.create_connection(split_address(head), timeout=seconds).close()
    except OSError:
        return False
    return True


def check_token(environment: Mapping[str, str]) -> None:
    """Raise ConfigurationError unless the secret of the cluster is there; Ray reads the mode when it is imported."""
    if problem := missing_secret(environment):
        raise ConfigurationError(problem)


def start_command(part: Part, folder: Path) -> list[str]:
    """Return the command that brings this machine in and blocks."""
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
    """Bring this machine in for the length of the block; yields the blocking ``ray start``.

    Raises:
        NodeError: with the end of its log when it does not come up.
    """
    check_token(environment)
    folder = Path(tempfile.mkdtemp(prefix="slime-ray-"))
    janitor = start_janitor(folder)
    log.parent.mkdir(parents=True, exist_ok=True)
    try:
        with log.open("ab") as output:
            earlier = output.tell()
            child = subprocess.Popen(
                start_command(part, folder),
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
    """Return when Ray says so in ``log`` after its first ``earlier`` bytes, which are those of an earlier run."""
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
