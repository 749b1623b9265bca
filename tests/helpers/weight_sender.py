"""Rank 0 of a weight update group, in plain torch: the smallest thing that can send weights to an engine."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

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
from slime.backends.sglang_utils.engine import SGLangEngine


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
