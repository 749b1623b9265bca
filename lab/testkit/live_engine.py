"""A real SGLang policy engine on the CPU, and weights for it over gloo without a trainer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import psutil
import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import (
    Backend,
    PrefixStore,
    _new_process_group_helper,
    _world,
    default_pg_timeout,
    rendezvous,
)

from groundwork.network import find_available_port
from groundwork.process import group_alive
from lab.testkit.waiting import wait_until
from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.backends.sglang_utils.engine import SGLangEngine

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


class WeightSender:
    """Sends named tensors to one engine over gloo, as one flattened bucket."""

    def __init__(self, engine: SGLangEngine, name: str) -> None:
        self._engine = engine
        self._name = name
        self._pool = ThreadPoolExecutor(1)
        port = find_available_port()
        joined = self._pool.submit(engine.init_weights_update_group, "127.0.0.1", port, 1, 2, name, "gloo")
        store, _, _ = next(rendezvous(f"tcp://127.0.0.1:{port}", 0, 2, timeout=default_pg_timeout))
        self._group, _ = _new_process_group_helper(
            2,
            0,
            [],
            Backend("gloo"),
            PrefixStore(name, store),
            group_name=name,
            backend_options=None,
            timeout=default_pg_timeout,
        )
        _world.pg_group_ranks[self._group] = {0: 0, 1: 1}
        joined.result()

    def update(
        self, weights: dict[str, torch.Tensor], version: str, mode: Literal["retract", "in_place"] = "retract"
    ) -> None:
        """Pause, send, continue; requests in flight go on with the new weights."""
        self._engine.pause_generation(mode)
        self._engine.begin_weight_update()
        flat = torch.cat([tensor.contiguous().flatten().view(torch.uint8) for tensor in weights.values()])
        arguments: dict[str, Any] = {
            "names": list(weights),
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in weights.values()],
            "shapes": [list(tensor.shape) for tensor in weights.values()],
            "group_name": self._name,
            "flush_cache": mode == "retract",
            "weight_version": version,
            "load_format": "flattened_bucket",
        }
        received = self._pool.submit(lambda: self._engine.update_weights_from_distributed(**arguments))
        dist.broadcast(flat, src=0, group=self._group)
        received.result()
        self._engine.end_weight_update()
        self._engine.continue_generation()

    def close(self) -> None:
        """Leave the group on both sides."""
        self._engine.destroy_weights_update_group(self._name)
        self._pool.shutdown()
