"""The Ray cluster of a run: a local head, the head of several machines, or an existing cluster.

Guarantees: a head belongs to the process that called :func:`ray_cluster`. Its processes end with that process, and its
temporary folder (short, because Ray limits socket paths) is removed, even after ``SIGKILL``: ``janitor.py`` waits on a
pipe for the owner's end. No other user enters the folder. Joining a local head takes a token that only this run has; it
listens on loopback, unless the run needs other machines. A cluster given by
``--ray-address`` is joined and otherwise left unchanged; Ray ends the run's actors there with the driver.

Of the output of the run's other processes, every line is appended to ``logs/processes.log`` in the run's folder as it arrives,
from all machines. The terminal shows warnings and errors only, each with its continuation lines and without Ray's prefix, and the
same message at most once in ten seconds.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import secrets
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

from groundwork.cleanup import entrust, start_janitor
from groundwork.exceptions import ConfigError
from groundwork.private_files import private, private_folder
from groundwork.process import StopRequested
from slime.args import Arguments, required
from slime.arguments.cluster import TOKEN_VARIABLE, missing_machines
from slime.arguments.process_environment import NOSET, THREADS, of_user, shared_settings, variables_of_job
from slime.backends.sglang_utils.external import LOCAL_HOSTS, external_url
from slime.exceptions import NodeError
from slime.ray.ray_start import (
    CPU_OBJECT_STORE_BYTES,
    EXTRA_CPUS,
    INSIDE,
    RAY_SETTINGS,
    Part,
    answers,
    node_of_cluster,
    resolved,
    split_address,
)
from slime.utils.forwarded_environment import forwarded
from slime.utils.run_logs import note

logger = logging.getLogger(__name__)


LOG_NAME = "processes.log"
REPEAT_SECONDS = 10.0
CONTINUATION_LINES = 40
_HANDLER = "ray_print_logs"
# Both formats of `logging.basicConfig` in this package: of the rollout manager, and of ranks and engines.
_RECORD = re.compile(
    r"(?:\d{4}-\d\d-\d\d [\d:,]+ (?P<logger>\S+) (?P<level>[A-Z]+) (?P<message>.*)"
    r"|(?P<process>\[[^\]]+\]) (?P<own_level>[A-Z]+) (?P<own_logger>\S+): (?P<own_message>.*))"
)
_SHOWN = ("WARNING", "ERROR", "CRITICAL")


@contextlib.contextmanager
def ray_cluster(args: Arguments, *, num_gpus: int, stop: StopRequested | None = None) -> Iterator[None]:
    """Initialise Ray for the length of the block; ``num_gpus`` of this machine are logical if it has none.

    `slime.ray.cluster` handles what the run's other processes print.

    ``stop`` ends the wait for other machines. In an existing cluster ``args.num_nodes`` becomes the cluster's size.

    Raises:
        ConfigError: the run needs machines that it was not given.
        NodeError: a cluster or its machines are missing.
    """
    import psutil
    import ray

    if args.ray_address:
        with _existing_cluster(args):
            take_over(args.run_dir)
            yield
        return
    if missing := missing_machines(args):
        raise ConfigError(missing)
    if os.environ.pop(NOSET, None) not in (None, "", "0"):
        print(f"{NOSET} is ignored, because every rank must see only its own GPU", flush=True)
    if args.num_nodes > 1:
        with _cluster_of_several(args, stop):
            take_over(args.run_dir)
            yield
        return
    folder = Path(tempfile.mkdtemp(prefix="slime-ray-"))
    janitor = start_janitor(folder)
    try:
        with _on_loopback() if not reaches_other_machines(args) else contextlib.nullcontext():
            _start_local_head(folder / INSIDE, num_gpus=num_gpus, cpu=args.device == "cpu")
        entrust(janitor, psutil.Process().children(recursive=True))
        take_over(args.run_dir)
        yield
    finally:
        ray.shutdown()
        _keep_worker_logs(folder / INSIDE, Path(args.run_dir) / "logs" / "ray")
        shutil.rmtree(folder, ignore_errors=True)
        with janitor:
            if not folder.exists():  # else a worker still writes there, and the janitor waits for it
                janitor.kill()


def reaches_other_machines(args: Arguments) -> bool:
    """Return whether the trainer sends weights to an external engine that is not on this machine."""
    urls = map(external_url, args.rollout_external_engine_addrs or [])
    return any(httpx.URL(url).host not in LOCAL_HOSTS for url in urls)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let a head that starts in this block, and all that it starts, have the address 127.0.0.1 and listen there alone.

    Ray calls that a machine without clusters, and reads the variable on import.
    """
    from ray._private import ray_constants

    before = os.environ.get(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR), ray_constants.ENABLE_RAY_CLUSTER
    os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR], ray_constants.ENABLE_RAY_CLUSTER = "0", False
    try:
        yield
    finally:
        variable, ray_constants.ENABLE_RAY_CLUSTER = before
        del os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR]
        if variable is not None:
            os.environ[ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR] = variable


@contextlib.contextmanager
def _without_unused_services() -> Iterator[None]:
    """Let a head that starts in this block have neither Ray's API server nor its autoscaler.

    A run uses neither. Each is a process with seconds of imports, and a head waits for the first even without a dashboard.

    Raises:
        AttributeError: this Ray uses other names, so that a change is noticed.
    """
    from ray._private.node import Node

    def start_nothing(self: Node, **_: Any) -> None:
        """Stand in for a service's start."""

    before = Node.start_api_server, Node.start_monitor
    Node.start_api_server = Node.start_monitor = start_nothing
    try:
        yield
    finally:
        Node.start_api_server, Node.start_monitor = before


def _start_local_head(folder: Path, *, num_gpus: int, cpu: bool) -> None:
    import ray

    # By default Ray requires a token and writes one to the home folder; this one exists only in the run's environment.
    os.environ.setdefault(TOKEN_VARIABLE, secrets.token_hex(32))
    logging.getLogger("ray._private.authentication.authentication_token_setup").setLevel(logging.ERROR)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    for name, value in RAY_SETTINGS.items():
        os.environ.setdefault(name, value)
    with _without_unused_services():
        ray.init(
            address="local",
            num_gpus=num_gpus,
            num_cpus=num_gpus + EXTRA_CPUS,
            object_store_memory=CPU_OBJECT_STORE_BYTES if cpu else None,
            include_dashboard=False,
            log_to_driver=True,
            logging_level=logging.WARNING,
            _temp_dir=str(folder),
            # Start workers on demand, not one per logical CPU.
            _system_config={"prestart_worker_first_driver": False},
        )


def of_run(args: Arguments) -> dict[str, str]:
    """Return the environment variables of all actors of the run, on every machine.

    They include the communicator variables of ranks and engines, so that no machine's own values interfere.
    """
    shared = {setting.name: setting.value for setting in shared_settings(args, os.environ) if setting.value is not None}
    variables = forwarded(os.environ, args.forward_env) | shared
    if THREADS in variables and of_user(args, os.environ, THREADS) is None:
        del variables[THREADS]
    return variables


@contextlib.contextmanager
def _existing_cluster(args: Arguments) -> Iterator[None]:
    """Join the cluster at ``--ray-address``, with the environment's authentication."""
    import ray
    from ray.exceptions import RayError

    from slime.ray.nodes import live_nodes

    address = required("--ray-address", args.ray_address)
    if address != "auto" and not answers(address):
        raise NodeError(
            f"no Ray cluster answers at {address}; start it there (`ray start --head`), or correct the address"
        )
    of_job = variables_of_job(os.environ)
    variables = {name: value for name, value in of_run(args).items() if name not in of_job}
    try:
        ray.init(
            address=address,
            log_to_driver=True,
            logging_level=logging.WARNING,
            runtime_env={"env_vars": variables} if variables else None,
        )
    except (RayError, ConnectionError, RuntimeError) as error:
        raise NodeError(f"the Ray cluster at {address} cannot be joined: {error}") from error
    try:
        args.num_nodes = len(live_nodes())
        if args.num_nodes > 1 and args.http_proxy:
            raise ConfigError(
                f"--http-proxy works on one machine only, but the cluster has {args.num_nodes}; remove it"
            )
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _cluster_of_several(args: Arguments, stop: StopRequested | None) -> Iterator[None]:
    """Start the head of ``--num-nodes`` machines and wait until all have joined."""
    import ray

    from slime.ray.nodes import wait_for_nodes

    given_head = required("--head-address", args.head_address)
    head = resolved(given_head)
    address, _ = split_address(head)
    part = Part(head, address, is_head=True, num_gpus=args.num_gpus_per_node, cpu=args.device == "cpu")
    variables = of_run(args)
    with node_of_cluster(part, os.environ, Path(args.run_dir) / "logs" / "ray-head.log"):
        ray.init(
            address=head,
            log_to_driver=True,
            logging_level=logging.WARNING,
            runtime_env={"env_vars": variables},
            _node_ip_address=address,
        )
        try:
            if stop is not None:
                stop.install()  # again, because Ray replaced the handlers
            wait_for_nodes(args.num_nodes, args.node_timeout, given_head, stop)
            yield
        finally:
            ray.shutdown()


def _keep_worker_logs(folder: Path, destination: Path) -> None:
    """Copy the actors' logs to the run's folder."""
    for source in folder.glob("session_2*/logs/worker-*"):
        if source.is_file() and source.stat().st_size:
            private_folder(destination)
            with source.open("rb") as log, open(destination / source.name, "wb", opener=private) as kept:
                shutil.copyfileobj(log, kept)


class ActorOutput:
    """Ray's handler of worker output, in place of the one that prints everything."""

    def __init__(self, log: Path) -> None:
        private_folder(log.parent)
        self._log = log
        self._lock = threading.Lock()
        self._continued: dict[Any, int] = {}
        self._last_shown: dict[str, float] = {}

    def __call__(self, data: Mapping[str, Any]) -> None:
        """Take a batch of lines of one process, as Ray gives them."""
        pid = data.get("pid")
        name = data.get("actor_name") or data.get("task_name") or "ray"
        with self._lock, open(self._log, "a", encoding="utf-8", opener=private) as log:
            for line in data.get("lines", ()):
                log.write(f"{name} {pid}: {line}\n")
                if (shown := self._on_terminal(pid, str(line))) is not None:
                    print(shown, file=sys.stderr, flush=True)
                    note(shown)

    def _on_terminal(self, pid: Any, line: str) -> str | None:
        """Return what the terminal shows of a line, or None."""
        if pid == "raylet":
            return f"ray: {line}"
        if match := _RECORD.match(line):
            self._continued[pid] = 0
            level = match["level"] or match["own_level"]
            if level not in _SHOWN:
                return None
            text = f"{level.lower()}: {match['message'] or match['own_message'] or ''}"
            text = f"{match['process']} {text}" if match["process"] not in (None, "[rank 0]") else text
            now = time.monotonic()
            if now - self._last_shown.get(text, -REPEAT_SECONDS) < REPEAT_SECONDS:
                return None
            self._last_shown = {
                text: now,
                **{old: at for old, at in self._last_shown.items() if now - at < REPEAT_SECONDS},
            }
            self._continued[pid] = CONTINUATION_LINES
            return text
        left = self._continued.get(pid, 0)
        self._continued[pid] = max(0, left - 1)
        return line if left else None


def take_over(run_dir: str | Path) -> None:
    """Handle worker output from now until `ray.shutdown`; call it right after `ray.init`.

    A Ray without this dispatcher keeps printing the output itself.
    """
    try:
        from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher
    except ImportError:
        logger.warning("this version of Ray prints the output of all processes itself; nothing is filtered")
        return
    output = ActorOutput(Path(run_dir) / "logs" / LOG_NAME)
    dispatcher.remove_handler(_HANDLER)
    dispatcher.add_handler(_HANDLER, output)
