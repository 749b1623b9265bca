"""A real SGLang policy engine on the CPU for integration tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from groundwork.process import group_alive
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.engine import SGLangEngine
from tests.helpers.waiting import wait_until

CONTEXT_LENGTH = 4096


def engine_arguments(model: Path, run_dir: Path) -> Arguments:
    """Return the arguments of a run whose policy engine serves ``model`` on a CPU."""
    return Arguments(
        run_dir=str(run_dir),
        hf_checkpoint=str(model),
        prm_model_path=None,
        seed=1,
        device="cpu",
        weight_update_mode="retract",
        check_weight_update_equal=True,
        sglang_max_total_tokens=20000,
        sglang_context_length=CONTEXT_LENGTH,
    )


def files_of(engine: SGLangEngine) -> set[str]:
    """The socket files and the load counters that the engine's server and its workers have open."""
    server = psutil.Process(engine.status()["pid"])
    found = set()
    for process in [server, *server.children(recursive=True)]:
        found |= {str(connection.laddr) for connection in process.net_connections("unix") if connection.laddr}
        found |= {place.path for place in process.memory_maps() if "/sglang_loads_" in place.path}
    return {path for path in found if path.startswith("/")}


def gone(files: set[str]) -> None:
    """Return when none of ``files`` is there."""
    wait_until(
        lambda: not any(map(os.path.exists, files)),
        lambda: f"still there: {[path for path in files if os.path.exists(path)]}",
        60.0,
    )


@contextmanager
def live_engine(args: Arguments) -> Iterator[SGLangEngine]:
    """Start the policy engine of ``args``; it is gone with all its processes when the block ends."""
    engine = SGLangEngine(args, EngineSpec("policy", 0, 1))
    engine.start()
    try:
        yield engine
    finally:
        pid, files = engine.status()["pid"], files_of(engine)
        engine.stop()
    assert not group_alive(pid), "the engine left processes behind"
    assert any("/sglang_loads_" in path for path in files)
    assert len(files) > 1
    gone(files)
