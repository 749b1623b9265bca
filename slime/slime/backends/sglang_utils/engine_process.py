"""The processes of an engine: one per machine, the whole engine's or this machine's ranks of one that spans several.

Guarantees: a process logs to ``<run_dir>/logs/<name>.log``. ``stop``, ``kill`` or its owner's death leaves nothing
behind. :class:`EngineProcess` is a plain class; ``slime.ray.engine_group`` makes a Ray actor of it on each of an engine's
machines except the first, which reaches them through :class:`OtherNodes`: its ``launch`` waits at most
``CREATE_SECONDS``, any other call ``ANSWER_SECONDS``, and errors name a machine whose actor is gone or silent.
"""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from groundwork.machine import this_host
from groundwork.network import find_available_port
from groundwork.private_files import private, private_folder
from groundwork.process import ChildProcess, group_stopped, spawn
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.arguments.process_environment import engine_variables
from slime.backends.sglang_utils.server import engine_environment
from slime.backends.sglang_utils.server_args import gives_memory_away, server_command
from slime.backends.sglang_utils.server_hooks import HOLD
from slime.exceptions import EngineNodeLostError
from slime.utils.forwarded_environment import own_of_machine
from slime.utils.kernel_caches import keep_kernels
from slime.weight_sync.remote_engine import EngineCalls, RemoteProcess


def process_environment(args: Arguments, spec: EngineSpec, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an engine's process on one machine.

    Args:
        args: arguments of the run.
        spec: the engine's part on this machine.
        base: environment of the engine's actor.
    """
    cpu = args.device == "cpu"
    environment = engine_environment({**base, **own_of_machine(base)}, cpu=cpu)
    saver = gives_memory_away(args, spec)
    environment |= engine_variables(args, environment, gives_memory_away=saver)
    if not cpu:
        keep_kernels(environment)
    if spec.gpu_ids and not cpu:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpu_ids))
    if saver:
        environment["SGLANG_MEMORY_SAVER_CUDA_GRAPH"] = "1"  # covers CUDA graphs too
    if spec.nodes > 1:
        # It would be a shared-memory file that a killed process leaves behind; between machines it is its own socket at a
        # guessed address.
        environment["SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"] = "0"
        if cpu:
            # Without it SGLang expects a NUMA node here for each rank of all machines. One entry, because one rank is here.
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            environment.setdefault("SGLANG_CPU_OMP_THREADS_BIND", cores)
    return environment


class EngineProcess:
    """Owns one process group."""

    # SIGTERM also ends SGLang's workers, which the server mistakes for a crash: it sleeps five seconds before it ends.
    stop_seconds = 1.0

    def __init__(self, args: Arguments, spec: EngineSpec) -> None:
        logging.basicConfig(level=logging.INFO, format=f"[{spec.name}] %(levelname)s %(name)s: %(message)s")
        self._args = args
        self._spec = spec
        self._cpu = args.device == "cpu"
        self.log_path = Path(args.run_dir) / "logs" / f"{spec.name}.log"
        self.child: ChildProcess | None = None

    def launch(self, port: int = 0, *, rendezvous: str = "", hold: bool = False) -> None:
        """Start the process without waiting until it is ready.

        Args:
            port: port to listen on; 0 for any.
            rendezvous: ``host:port`` where the ranks of an engine that spans machines meet.
            hold: see `server_hooks.hold_from_start`.
        """
        port = port or find_available_port(host=self._spec.host)
        command = self._command(port, rendezvous)
        if hold:
            command.append(HOLD)
        private_folder(self.log_path.parent)
        with open(self.log_path, "a", opener=private) as log:
            log.write(f"$ {shlex.join(command)}\n")
        self.child = spawn(
            command,
            env=self._environment(),
            log_path=self.log_path,
            name=self._spec.name,
        )

    def _command(self, port: int, rendezvous: str) -> list[str]:
        """Return the server's command."""
        return server_command(self._args, self._spec, port=port, cpu=self._cpu, rendezvous=rendezvous)

    def _environment(self) -> dict[str, str]:
        """Return the environment of the process."""
        return process_environment(self._args, self._spec, os.environ)

    @property
    def pid(self) -> int | None:
        """Number of the process; None before its first start and after its end."""
        return self.child.pid if self.child else None

    def alive(self) -> bool:
        """Return whether the process runs."""
        return self.child is not None and self.child.alive()

    def stopped(self) -> bool:
        """Return whether a signal has stopped any of the processes, such as the scheduler behind the server."""
        return self.child is not None and group_stopped(self.child.pid)

    def stop(self) -> None:
        """End the process and everything it started; a no-op if it is not running."""
        if self.child is not None:
            self.child.stop(self.stop_seconds)
            self.child = None

    def kill(self) -> None:
        """Kill the process with SIGKILL, like a crash; it can be restarted."""
        if self.child is not None:
            self.child.kill()

    def hosts(self) -> list[str]:
        """Return the names of the machines (and containers) of the ranks."""
        return [this_host()]

    def returncode(self) -> int | None:
        """Return the exit status of the process (negative: the signal); None while it runs or before its first start."""
        return self.child.returncode if self.child else None

    def explain(self, problem: str) -> str:
        """Return ``problem`` with the end of the log."""
        tail = self.child.log_tail() if self.child else "(it was never started)"
        return f"{self._spec.name} {problem}. Log: {self.log_path}. Its last lines:\n{tail}"


T = TypeVar("T")

ANSWER_SECONDS = 60.0
CREATE_SECONDS = 300.0
"""Time limit for a new actor, whose process imports this package, perhaps from a slow shared folder."""


class OtherNodes:
    """Calls on the actors of the engine ``name``; see the module."""

    def __init__(self, name: str, handles: Sequence[RemoteProcess] = ()) -> None:
        self._name = name
        self._handles = list(handles)

    def launch(self, rendezvous: str) -> None:
        """Start the processes; raise EngineNodeLostError if a machine is lost."""
        self._answers(EngineCalls.to_all(self._handles, RemoteProcess.launch, rendezvous), CREATE_SECONDS)

    def alive(self) -> bool:
        """Return whether all processes run; raise EngineNodeLostError if a machine is lost."""
        return all(self._answers(EngineCalls.to_all(self._handles, RemoteProcess.alive), ANSWER_SECONDS))

    def returncodes(self) -> list[int | None]:
        """Return each process's exit status, None while it runs; raise EngineNodeLostError if a machine is lost."""
        return self._answers(EngineCalls.to_all(self._handles, RemoteProcess.returncode), ANSWER_SECONDS)

    def explain(self) -> str:
        """Return the ends of the logs, or which machine does not answer."""
        try:
            calls = EngineCalls.to_all(self._handles, RemoteProcess.explain, "is a part of it")
            return "\n".join(self._answers(calls, ANSWER_SECONDS))
        except EngineNodeLostError as error:
            return str(error)

    def hosts(self) -> list[str]:
        """Return the machines' names; raise EngineNodeLostError if a machine is lost."""
        return [
            host
            for hosts in self._answers(EngineCalls.to_all(self._handles, RemoteProcess.hosts), ANSWER_SECONDS)
            for host in hosts
        ]

    def stop(self) -> EngineCalls[None]:
        """Start ending the reachable processes; wait with ``unanswered(ANSWER_SECONDS)``."""
        return EngineCalls.to_all(self._handles, RemoteProcess.stop)

    def kill(self) -> EngineCalls[None]:
        """Start killing the reachable processes; wait with ``unanswered(ANSWER_SECONDS)``."""
        return EngineCalls.to_all(self._handles, RemoteProcess.kill)

    def _answers(self, calls: EngineCalls[T], seconds: float) -> list[T]:
        """Return the answers of all machines; raise EngineNodeLostError unless they come within ``seconds``."""
        lost = calls.unanswered(seconds)
        if lost:
            raise EngineNodeLostError(
                f"{self._name}: its process on machine {lost[0] + 2} of {len(self._handles) + 1} does not answer {calls.method} "
                f"({calls.error(lost[0]) or f'for {seconds:.0f} s'})"
            )
        return calls.values()
