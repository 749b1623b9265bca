"""An engine's process on one machine: the whole engine, or of an engine of several machines the ranks of this one.

Guarantees: it logs to ``<run_dir>/logs/<name>.log``; nothing of it is left after ``stop`` or ``kill``, or after the death of who
owns it. :class:`EngineProcess` is a plain class; ``slime.ray.engines`` makes a Ray actor of it on each machine of an engine but the
first.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping
from pathlib import Path

from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.arguments.process_environment import engine_variables
from slime.backends.sglang_utils.server import engine_environment
from slime.backends.sglang_utils.server_args import gives_memory_away, server_command
from slime.backends.sglang_utils.server_hooks import HOLD
from slime.utils.forwarded_environment import own_of_machine
from slime.utils.http_utils import find_available_port
from slime.utils.machine import this_host
from slime.utils.process import ChildProcess, spawn

# SGLang's workers end at SIGTERM; its server takes that for a crash of theirs and sleeps five seconds before it ends.
_STOP_SECONDS = 1.0


def process_environment(args: Arguments, spec: EngineSpec, base: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of an engine's process on one machine.

    Args:
        args: of the run.
        spec: of the engine on this machine.
        base: variables of the engine's actor.
    """
    cpu = args.device == "cpu"
    environment = engine_environment({**base, **own_of_machine(base)}, cpu=cpu)
    saver = gives_memory_away(args, spec)
    environment |= engine_variables(args, environment, gives_memory_away=saver)
    if spec.gpu_ids and not cpu:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, spec.gpu_ids))
    if saver:
        environment["SGLANG_MEMORY_SAVER_CUDA_GRAPH"] = "1"  # that of CUDA graphs too
    if spec.nodes > 1:
        # It would be a file in shared memory that a killed process leaves; between machines it is a socket of its own at a
        # guessed address.
        environment["SGLANG_USE_MESSAGE_QUEUE_BROADCASTER"] = "0"
        if cpu:
            # Without it SGLang wants a NUMA node of this machine for each rank of all machines. One entry: one rank is here.
            cores = ",".join(map(str, sorted(os.sched_getaffinity(0))))
            environment.setdefault("SGLANG_CPU_OMP_THREADS_BIND", cores)
    return environment


class EngineProcess:
    """Owns one process group."""

    def __init__(self, args: Arguments, spec: EngineSpec) -> None:
        self._args = args
        self._spec = spec
        self._cpu = args.device == "cpu"
        self._log_path = Path(args.run_dir) / "logs" / f"{spec.name}.log"
        self._child: ChildProcess | None = None

    def launch(self, port: int = 0, *, rendezvous: str = "", hold: bool = False) -> None:
        """Start the process, and do not wait until it is of use.

        Args:
            port: where it listens; 0 for any.
            rendezvous: ``host:port`` where the ranks of an engine of several machines meet.
            hold: see `server_hooks.hold_from_start`.
        """
        port = port or find_available_port(host=self._spec.host)
        command = server_command(self._args, self._spec, port=port, cpu=self._cpu, rendezvous=rendezvous)
        command += [HOLD] if hold else []
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        with self._log_path.open("a") as log:
            log.write(f"$ {shlex.join(command)}\n")
        self._child = spawn(
            command,
            env=process_environment(self._args, self._spec, os.environ),
            log_path=self._log_path,
            name=self._spec.name,
        )

    def alive(self) -> bool:
        """Whether the process runs."""
        return self._child is not None and self._child.alive()

    def stop(self) -> None:
        """End the process and everything it started; harmless when it does not run."""
        if self._child is not None:
            self._child.stop(_STOP_SECONDS)
            self._child = None

    def kill(self) -> None:
        """End the process with SIGKILL, as a crash would; it can be started again."""
        if self._child is not None:
            self._child.kill()

    def hosts(self) -> list[str]:
        """Names of the machines (and containers) that the ranks run in."""
        return [this_host()]

    def returncode(self) -> int | None:
        """Exit status of the process (negative: the signal); None while it runs, or before its first start."""
        return self._child.returncode if self._child else None

    def explain(self, problem: str) -> str:
        """``problem`` with the end of the log."""
        tail = self._child.log_tail() if self._child else "(it was never started)"
        return f"{self._spec.name} {problem}. Log: {self._log_path}. Its last lines:\n{tail}"
