"""A Ray cluster of two machines that no run has started, as ``ray start`` makes one, and programs that are submitted to it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from groundwork.cleanup import entrust, start_janitor
from groundwork.network import find_available_port
from lab.testkit.processes import assert_all_gone, title_of

ADDRESSES = ("127.0.0.4", "127.0.0.5")
_RAY = (sys.executable, "-c", "from ray.scripts.scripts import main; main()")
_SECONDS = 120
_ACTORS = ("ray::FSDPTrainActor", "ray::RolloutManager", "ray::SGLangEngine", "ray::Probe")


class ForeignCluster:
    """The two machines, each a blocking ``ray start``."""

    def __init__(self, dashboard: str, machines: Sequence[psutil.Process]) -> None:
        self.dashboard = dashboard
        self.machines = machines

    def submit(self, variables: Mapping[str, str]) -> list[str]:
        """The words before a program that run it as a job with ``variables``."""
        environment = json.dumps({"env_vars": dict(variables)})
        return [*_RAY, "job", "submit", "--address", self.dashboard, "--runtime-env-json", environment, "--"]

    def family(self) -> list[psutil.Process]:
        """All processes on the two machines."""
        return [process for machine in self.machines for process in machine.children(recursive=True)]

    def actors(self) -> list[str]:
        """Titles of the processes of a run's actors."""
        titles = [title_of(process) for process in self.family()]
        return [title for title in titles if title.startswith(_ACTORS)]

    def driver(self) -> psutil.Process:
        """The process of the program that was submitted."""
        (found,) = [one for one in self.family() if is_program(title_of(one).split())]
        return found


def is_program(words: Sequence[str]) -> bool:
    """Whether a command line is that of a training program of the repository."""
    return words[:1] == [sys.executable] and words[1:2] != [] and words[1].endswith(("train.py", "train_async.py"))


@contextlib.contextmanager
def foreign_cluster(folder: Path) -> Iterator[ForeignCluster]:
    """Two machines of one logical GPU each, with the token of this environment; nothing of them outlives this process."""
    ports = find_available_port(host=ADDRESSES[0]), find_available_port()
    head = f"{ADDRESSES[0]}:{ports[0]}"
    own = ["--head", "--port", str(ports[0]), "--include-dashboard", "true", "--dashboard-port", str(ports[1])]
    temporary = tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)  # its sockets need a short path
    janitor = start_janitor(temporary.name)
    children: list[subprocess.Popen[bytes]] = []
    family: list[psutil.Process] = []
    try:
        for number, (address, words) in enumerate(zip(ADDRESSES, (own, ["--address", head]), strict=True)):
            own_folder = ["--temp-dir", f"{temporary.name}/{number}"]
            log = folder / f"machine-{number}.log"
            children.append(_start(log, address, [*words, *own_folder]))
            machine = psutil.Process(children[-1].pid)
            entrust(janitor, [machine])
            _wait_until_up(children[-1], log)
            entrust(janitor, machine.children(recursive=True))
        cluster = ForeignCluster(f"http://127.0.0.1:{ports[1]}", [psutil.Process(child.pid) for child in children])
        yield cluster
        family = cluster.family()
    finally:
        for child in children:
            child.terminate()
        for child in children:
            child.wait(_SECONDS)
        temporary.cleanup()
        with janitor:
            janitor.kill()
    assert_all_gone(family)


def _start(log: Path, address: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
    command = [
        *(*_RAY, "start", *words, "--node-ip-address", address, "--num-gpus", "1", "--num-cpus", "2"),
        *("--dashboard-agent-listen-port", str(find_available_port(host=address))),
        *("--object-store-memory", str(128 * 2**20), "--disable-usage-stats", "--block"),
    ]
    environment = {**os.environ, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    with log.open("wb") as output:
        child = subprocess.Popen(command, env=environment, stdout=output, stderr=output, start_new_session=True)
    return child


def _wait_until_up(child: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + _SECONDS
    while b"Ray runtime started" not in log.read_bytes():
        assert child.poll() is None, log.read_text()
        assert time.monotonic() < deadline, log.read_text()
        time.sleep(0.1)
