"""The server's process on its machine: its files, and on a CPU its forked workers.

SGLang would leave five socket files per start, and its load counters when it is killed. :func:`remove_leftovers` has all of it
removed when the server's process is gone, however it ended. The socket files are put into a folder of the server's own; only
the server's process names them, so its workers' caches stay where they are.

On a CPU the scheduler and the detokenizer are forks of the server, which has imported SGLang already.

SGLang spawns them as fresh interpreters, because a CUDA context does not survive a fork; each imports all of SGLang again,
which is half of what an engine's start costs. Guarantees: a worker differs from a spawned one in that alone; what the server
set for itself (its folder for temporary files, its signal handlers) does not reach a worker. No worker is forked from a server
with threads, of which one might hold a lock that the worker would wait for; such a server spawns its workers.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import tempfile
import threading
from multiprocessing.context import ForkContext, ForkProcess, SpawnProcess
from pathlib import Path
from typing import Any

from slime.utils.cleanup import entrust_path, start_janitor
from slime.utils.process import LIFELINE_THREAD

logger = logging.getLogger(__name__)


def remove_leftovers() -> None:
    """Have the files of the server that this process is about to start removed at its end.

    Raises:
        AttributeError: for an SGLang whose names are others, so that a change is noticed.
    """
    from sglang.srt.managers.load_snapshot import shm_path_for
    from sglang.srt.server_args import PortArgs

    tempfile.tempdir = tempfile.mkdtemp(prefix="slime-engine-")
    janitor = start_janitor(tempfile.tempdir, detached=True)
    init_new = PortArgs.init_new

    def noted(*values: Any, **kwargs: Any) -> PortArgs:
        ports = init_new(*values, **kwargs)
        entrust_path(janitor, shm_path_for(ports.instance_id))
        return ports

    PortArgs.init_new = staticmethod(noted)


_SERVER_SIGNALS = (signal.SIGQUIT, signal.SIGTERM, signal.SIGINT)


class _Worker(ForkProcess):
    @staticmethod
    def _Popen(process_obj: Any) -> Any:
        if others := _other_threads():
            logger.warning("the server has threads (%s): its workers are spawned, not forked", ", ".join(others))
            multiprocessing.set_start_method("spawn", force=True)
            return SpawnProcess._Popen(process_obj)
        return ForkProcess._Popen(process_obj)


class _ForkWithoutThreads(ForkContext):
    Process = _Worker


def fork_workers() -> None:
    """Have SGLang fork the workers of the server that this process is about to start.

    Raises:
        AttributeError: for an SGLang whose names are others, so that a change is noticed.
    """
    from sglang.srt.entrypoints import engine

    set_up = engine._set_envs_and_config

    def set_up_to_fork(*values: Any, **kwargs: Any) -> None:
        set_up(*values, **kwargs)
        multiprocessing.context._default_context._actual_context = _ForkWithoutThreads()  # type: ignore[attr-defined]

    engine._set_envs_and_config = set_up_to_fork
    os.register_at_fork(after_in_child=_forget_the_server)


def _other_threads() -> list[str]:
    """Names of this process's threads, those of libraries included, but for this one and the lifeline, which holds no lock while it reads."""
    harmless = {thread.native_id for thread in threading.enumerate() if thread.name == LIFELINE_THREAD}
    harmless.add(threading.get_native_id())
    found = []
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) not in harmless:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
                found.append((task / "comm").read_text().strip())
    return found


def _forget_the_server() -> None:
    tempfile.tempdir = None
    for number in _SERVER_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
