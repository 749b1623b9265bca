"""The engine process: ``python -m slime.backends.sglang_utils.server <SGLang arguments>``.

Guarantees: the process and everything it starts end with the engine actor that started it. A CPU engine finds the
import stand-ins, also in the scheduler and detokenizer processes. The ranks' rendezvous listens on the engine's address
alone (`slime.utils.tcp_store`). Otherwise this is ``sglang.launch_server``.

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
import gc
import logging
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Mapping
from multiprocessing.context import ForkContext, ForkProcess, SpawnProcess
from pathlib import Path
from typing import Any

from groundwork.cleanup import entrust_path, start_janitor
from groundwork.garbage import collect_rarely
from groundwork.machine import with_programs
from groundwork.process import LIFELINE_THREAD, watch_lifeline
from slime.backends.sglang_utils import people_hooks, served_model, server_hooks

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
        # Collections of a worker would visit, and so copy, all that the server has imported.
        gc.freeze()
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


CPU_STANDINS = Path(__file__).parent / "cpu_standins"


def engine_environment(base: Mapping[str, str], *, cpu: bool) -> dict[str, str]:
    """Return the environment of an engine process and its children.

    On a CPU ``PYTHONPATH`` starts with the stand-ins, because SGLang starts its workers as fresh interpreters. It also
    has the folder of the ``slime`` package, so that the module is found from any working directory.
    """
    environment = {name: value for name, value in base.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    package_root = str(Path(__file__).resolve().parents[3])
    paths = [str(CPU_STANDINS)] if cpu else []
    paths += [package_root, *filter(None, base.get("PYTHONPATH", "").split(os.pathsep))]
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    # Check health without generating, which would wait while an update holds the engine (log/sglang.md#sglang-health).
    environment["SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION"] = "0"
    # Cached image embeddings would outlive the tower's weights, because flushing the prefix cache keeps them
    # (log/pictures.md#sglang-vision-cache).
    environment["SGLANG_VLM_CACHE_SIZE_MB"] = "0"
    environment["PYTHONUNBUFFERED"] = "1"
    # SGLang compiles kernels with the `ninja` beside the interpreter, which may not be on the shell's PATH.
    environment["PATH"] = with_programs(base.get("PATH", os.defpath))
    if cpu:
        environment["SGLANG_USE_CPU_ENGINE"] = "1"
        environment["CUDA_VISIBLE_DEVICES"] = ""
        # The compiler would hang looking for Triton, so one request with a penalty would stop the engine.
        environment["TORCHDYNAMO_DISABLE"] = "1"
        environment.setdefault("OMP_NUM_THREADS", "1")
        # Large pages: a weight update receives into fresh memory, and small pages cost more than the transfer.
        environment.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    return environment


def quantise_base_if_asked() -> None:
    """Let this process serve a base in NF4 if the command line says so (`server_hooks.NF4_BASE`)."""
    if server_hooks.NF4_BASE in sys.argv:
        from slime.backends.sglang_utils.quantised_base import quantise_base

        quantise_base(cpu=os.environ.get("SGLANG_USE_CPU_ENGINE") == "1")


def multiply_with_numbers_if_lora() -> None:
    """Let this process multiply with adapters without SGLang's tensors of one number if it serves some on a CPU."""
    if "--enable-lora" in sys.argv and os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        from slime.backends.sglang_utils.cpu_adapters import multiply_with_numbers

        multiply_with_numbers()


def main() -> None:
    """Run the SGLang server with the arguments of the command line (and our own ones, `server_hooks`) until it is told to stop."""
    watch_lifeline()
    warnings.filterwarnings("ignore", category=UserWarning)
    collect_rarely()
    # SGLang imports both where they are installed, for its dumper and for servers of tools. Each takes seconds.
    sys.modules["megatron"] = None  # type: ignore[assignment]
    if "--tool-server" not in sys.argv:
        sys.modules["mcp"] = None  # type: ignore[assignment]
    served_model.give(sys.argv)
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    remove_leftovers()
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        fork_workers()
    values, theirs = server_hooks.own_values(sys.argv[1:])
    if server_hooks.PEOPLE in values:
        people_hooks.serve_people(Path(values[server_hooks.PEOPLE]), int(values[server_hooks.HELD_ADAPTERS]))
    elif "--enable-lora" in sys.argv:
        server_hooks.serve_newest_adapter()
    quantise_base_if_asked()
    multiply_with_numbers_if_lora()
    if server_hooks.HOLD in sys.argv:
        server_hooks.hold_from_start()
    try:
        run_server(prepare_server_args(theirs))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ in ("__main__", "__mp_main__"):  # the second is this module in the workers that SGLang spawns
    from slime.utils.tcp_store import host_rendezvous_at_their_address

    host_rendezvous_at_their_address()

if __name__ == "__mp_main__":
    quantise_base_if_asked()
    multiply_with_numbers_if_lora()

if __name__ == "__main__":
    main()
