"""The engine process: ``python -m slime.backends.sglang_utils.server <SGLang arguments>``.

Guarantees: the process and everything it starts end with the engine actor that started it. A CPU engine finds the
import stand-ins, also in the scheduler and detokenizer processes. The ranks' rendezvous listens on the engine's address
alone (`slime.utils.tcp_store`). Otherwise this is ``sglang.launch_server``.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path

from groundwork.garbage import collect_rarely
from groundwork.machine import with_programs
from groundwork.process import watch_lifeline
from slime.backends.sglang_utils import server_hooks, server_process

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


def main() -> None:
    """Run the SGLang server with the arguments of the command line (and `server_hooks.HOLD`) until it is told to stop."""
    watch_lifeline()
    warnings.filterwarnings("ignore", category=UserWarning)
    collect_rarely()
    # SGLang's dumper imports Megatron where it is installed, which takes a second; an engine uses nothing of it.
    sys.modules["megatron"] = None  # type: ignore[assignment]
    from sglang.launch_server import run_server
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import prepare_server_args
    from sglang.srt.utils import kill_process_tree

    load_plugins()
    server_process.remove_leftovers()
    if os.environ.get("SGLANG_USE_CPU_ENGINE") == "1":
        server_process.fork_workers()
    if "--enable-lora" in sys.argv:
        server_hooks.serve_newest_adapter()
    options = [option for option in sys.argv[1:] if option != server_hooks.HOLD]
    if len(options) < len(sys.argv) - 1:
        server_hooks.hold_from_start()
    try:
        run_server(prepare_server_args(options))
    finally:
        kill_process_tree(os.getpid(), include_parent=False)


if __name__ in ("__main__", "__mp_main__"):  # the second is this module in the workers that SGLang spawns
    from slime.utils.tcp_store import host_rendezvous_at_their_address

    host_rendezvous_at_their_address()

if __name__ == "__main__":
    main()
