"""A trainer's rank 0 without a trainer, and what its engines hold; for tests of the transports over real HTTP."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from benchmarks.weight_receiver import ReceiverProcess
from slime.args import Arguments
from slime.weight_sync import WeightSync
from slime.weight_sync.pushes import make_weight_sync

SPEC: dict[str, Any] = {
    "embedding": [[40, 8], "float32"],
    "layer.0": [[8, 24], "float32"],
    "layer.1": [[24], "float32"],
    "layer.2": [[900], "float32"],
}
TRANSPORTS: dict[str, dict[str, Any]] = {
    "broadcast": {},
    "shared": {"update_weight_transport": "shared"},
    "delta": {"update_weight_mode": "delta"},
    "disk": {"update_weight_transport": "disk"},
}
"""Flags of each way for whole weights."""
CPU = torch.device("cpu")


@contextmanager
def rank_zero() -> Iterator[None]:
    """The default group of one process."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        yield
    finally:
        dist.destroy_process_group()


def sync_args(run_dir: Path, **changes: Any) -> Arguments:
    """Arguments of a push in buckets of 2 KiB, unless ``changes`` say otherwise."""
    (run_dir / "config.json").write_text("{}")
    values = {
        "run_dir": str(run_dir),
        "hf_checkpoint": str(run_dir),
        "train_dtype": "float32",
        "device": "cpu",
        "update_weight_buffer_size": 2048,
        "distributed_timeout_minutes": 1,
    }
    return Arguments(**(values | changes))


def weights(seed: int) -> dict[str, Tensor]:
    """Random weights."""
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator) for name, (shape, _) in SPEC.items()}


Make = Callable[..., WeightSync]
"""Returns a transport for the arguments, with ``device`` and ``address``."""


@contextmanager
def connected(
    args: Arguments, engines: list[Any], device: torch.device = CPU, make: Make = make_weight_sync
) -> Iterator[Any]:
    """A transport of a trainer on ``device`` that has joined ``engines``."""
    sync = make(args, device=device, address="127.0.0.1")
    try:
        sync.connect(engines)
        yield sync
    finally:
        sync.close()


def holds(receiver: ReceiverProcess, expected: dict[str, Tensor]) -> bool:
    """Whether the receiver's weights are ``expected``, bit for bit."""
    return receiver.weights() == {name: value.view(torch.uint8).numpy().tobytes() for name, value in expected.items()}
