"""The Ray cluster of a run: its own local head, or one that exists already.

Guarantee: a local head belongs to the process that called :func:`ray_cluster`. Its processes end with that process, its
temporary folder (short, because Ray's socket paths must be) is removed too, even after ``SIGKILL``: ``janitor.py`` waits on
a pipe for the owner's end. Joining it takes a token that only this run has. A cluster given by ``--ray-address`` is joined
and left untouched.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from slime.ray.janitor import start_time

logger = logging.getLogger(__name__)

CPU_OBJECT_STORE_BYTES = 512 * 2**20
_EXTRA_CPUS = 16
_JANITOR = Path(__file__).with_name("janitor.py")


@contextlib.contextmanager
def ray_cluster(args: Namespace, *, num_gpus: int) -> Iterator[None]:
    """Initialise Ray for the length of the block; ``num_gpus`` are logical on a machine without any."""
    import ray

    address = getattr(args, "ray_address", None)
    if address:
        ray.init(address=address, log_to_driver=True, logging_level=logging.WARNING)
        try:
            yield
        finally:
            ray.shutdown()
        return
    folder = Path(tempfile.mkdtemp(prefix="slime-ray-"))
    janitor = _start_janitor(folder)
    try:
        _start_local_head(folder, num_gpus=num_gpus, cpu=args.device == "cpu")
        _entrust_processes(janitor)
        yield
    finally:
        ray.shutdown()
        _keep_worker_logs(folder, Path(args.run_dir) / "logs" / "ray")
        shutil.rmtree(folder, ignore_errors=True)
        with janitor:
            janitor.kill()


def _start_local_head(folder: Path, *, num_gpus: int, cpu: bool) -> None:
    import ray

    # Ray asks for a token by default and would write one to the home folder; this one lives in the environment of the run.
    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault("RAY_DISABLE_DOCKER_CPU_WARNING", "1")
    ray.init(
        address="local",
        num_gpus=num_gpus,
        num_cpus=num_gpus + _EXTRA_CPUS,
        object_store_memory=CPU_OBJECT_STORE_BYTES if cpu else None,
        include_dashboard=False,
        log_to_driver=True,
        logging_level=logging.WARNING,
        _temp_dir=str(folder),
        # Workers are started when an actor needs one, not one per logical CPU.
        _system_config={"prestart_worker_first_driver": False},
    )


def _start_janitor(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-S", str(_JANITOR), str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _entrust_processes(janitor: subprocess.Popen[str]) -> None:
    """Tell the janitor which processes Ray has started: those that do not end by themselves when the owner is killed."""
    import psutil

    assert janitor.stdin is not None
    for child in psutil.Process().children(recursive=True):
        started = start_time(child.pid)
        if child.pid != janitor.pid and started is not None:
            janitor.stdin.write(f"{child.pid} {started}\n")
    janitor.stdin.flush()


def _keep_worker_logs(folder: Path, destination: Path) -> None:
    """Copy what the actors wrote to the run's folder."""
    for source in folder.glob("session_2*/logs/worker-*"):
        if source.is_file() and source.stat().st_size:
            destination.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, destination / source.name)
