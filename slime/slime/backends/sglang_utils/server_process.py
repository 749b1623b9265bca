"""The server's process on its machine: cleanup of its files and, on a CPU, forked workers.

SGLang leaves five socket files per start, and its load counters when it is killed. :func:`remove_leftovers` removes all
of them once the server's process is gone. The socket files go to a folder of the server's own. Only the server's
process uses that folder, so its workers' caches stay where they are.

On a CPU the scheduler and the detokenizer are forks of the server, which has already imported SGLang. By default SGLang
spawns fresh interpreters, because a CUDA context does not survive a fork; importing SGLang again takes half of an
engine's start. Guarantees: a forked worker differs from a spawned one in nothing else. The server's own settings (its
temporary folder, its signal handlers) do not reach a worker. A server with threads spawns its workers instead, because
a thread might hold a lock that a forked worker would wait for.
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

from groundwork.cleanup import entrust_path, start_janitor
from groundwork.process import LIFELINE_THREAD

logger = logging.getLogger(__name__)


def remove_leftovers() -> None:
    """Arrange the removal of the server's files at this process's end; call it before the server starts.

    Raises:
        AttributeError: this SGLang uses other names, so that a change is noticed.
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
    """Make SGLang fork the server's workers; call it before the server starts.

    Raises:
        AttributeError: this SGLang uses other names, so that a change is noticed.
    """
    from sglang.srt.entrypoints import engine

    set_up = engine._set_envs_and_config

    def set_up_to_fork(*values: Any, **kwargs: Any) -> None:
        set_up(*values, **kwargs)
        multiprocessing.context._default_context._actual_context = _ForkWithoutThreads()  # type: ignore[attr-defined]

    engine._set_envs_and_config = set_up_to_fork
    os.register_at_fork(after_in_child=_forget_the_server)


def _other_threads() -> list[str]:
    """Return the names of this process's other threads, except the lifeline, which holds no lock while it reads."""
    harmless = {thread.native_id for thread in threading.enumerate() if thread.name == LIFELINE_THREAD}
    harmless.add(threading.get_native_id())
    other_threads = []
    for task in Path("/proc/self/task").iterdir():
        if int(task.name) not in harmless:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has just ended
                other_threads.append((task / "comm").read_text().strip())
    return other_threads


def _forget_the_server() -> None:
    tempfile.tempdir = None
    for number in _SERVER_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
