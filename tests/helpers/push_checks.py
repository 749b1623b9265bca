"""Pushes to receivers in processes of their own: one body for gloo and slots on a CPU, CUDA IPC, pinned memory and NCCL.

The CPU's runs are in `tests/integration/test_gpu_bodies.py`, those on GPUs in `tests/gpu`. No engine is needed.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.weight_receiver import ReceiverProcess
from slime.exceptions import EngineError
from slime.weight_sync.pushes import make_weight_sync
from tests.helpers.weight_receivers import SPEC, Make, connected, holds, rank_zero, sync_args, weights

DETECTED_SECONDS = 30.0
"""An engine that refuses or dies must be noticed within this time, whatever communicator waits for it."""


@contextmanager
def receiving(
    folder: Path, device: torch.device, place: str, make: Make = make_weight_sync, **flags: Any
) -> Iterator[tuple[Any, ReceiverProcess]]:
    """A transport of a trainer on ``device`` and a receiver at ``place`` (``cpu``, ``cuda:1``) that it has joined."""
    args = sync_args(folder, device=device.type, **flags)
    receiver = ReceiverProcess(args, SPEC, folder / "receiver", device=place)
    try:
        with rank_zero(), connected(args, [receiver.handle], device, make) as sync:
            yield sync, receiver
    finally:
        receiver.stop()


def mapped_segments(process: int | str = "self") -> int:
    """Return how many segments of host memory a process has mapped; of this one, without what failed pushes left as garbage."""
    gc.collect()
    return Path(f"/proc/{process}/maps").read_text().count("memfd:slime-weights")


def check_slots(folder: Path, device: torch.device, place: str, make: Make = make_weight_sync, **flags: Any) -> None:
    """Three buckets go through two slots, which both sides make once, and keep over pushes, connections and a killed receiver.

    The weights are in float64, and computed on the device right before they are packed. Afterwards nothing is mapped.
    """
    allocated = []
    shared = {"update_weight_transport": "shared", **flags}
    before = mapped_segments()
    with receiving(folder, device, place, make, **shared) as (sync, receiver):
        for version in range(4):
            if version == 3:
                sync.connect([receiver.handle])
            sync.push(computed(device, version), str(version))
            assert holds(receiver, weights(version))
            allocated.append(torch.cuda.memory_allocated() if device.type == "cuda" else mapped_segments())
            opened = receiver.state()["opened"]
            if version < 3:
                assert opened == 2
        assert len({*allocated}) == 1
        receiver.fault("die", "update_weights_from_tensor", 1)
        with pytest.raises(EngineError):
            sync.push(computed(device, 4), "4")
        receiver.process.wait(60)
        args = sync_args(folder, device=device.type, **shared)
        another = ReceiverProcess(args, SPEC, folder / "another", device=place)
        try:
            sync.connect([another.handle])
            for version in (5, 6):
                sync.push(computed(device, version), str(version))
                assert holds(another, weights(version))
            assert another.state()["opened"] == 2
            assert allocated[-1] == (torch.cuda.memory_allocated() if device.type == "cuda" else mapped_segments())
        finally:
            another.stop()
    assert mapped_segments() == before


def computed(device: torch.device, seed: int) -> Iterator[tuple[str, Tensor]]:
    """The random weights of ``seed`` in float64, each the end of a chain of kernels that takes longer than to ask for it."""
    work = torch.ones(1000 if device.type == "cuda" else 10, device=device).expand(
        1000 if device.type == "cuda" else 10, -1
    )
    for name, value in weights(seed).items():
        result = value.to(device, torch.float64)
        nothing = (work @ work @ work @ work).sum() * 0
        yield name, result + nothing


def on(device: torch.device, seed: int) -> Iterator[tuple[str, Tensor]]:
    """The random weights of ``seed`` on ``device``."""
    return ((name, value.to(device)) for name, value in weights(seed).items())


def check_pushes(folder: Path, device: torch.device, place: str, **flags: Any) -> None:
    """Push three versions; the receiver must hold each bit for bit, and its checksums must be the trainer's."""
    with receiving(folder, device, place, check_weight_update_equal=True, **flags) as (sync, receiver):
        for version in range(3):
            sync.push(on(device, version), str(version))
            assert receiver.state()["version"] == str(version)
            assert holds(receiver, weights(version))


def check_a_refused_bucket(folder: Path, device: torch.device, place: str, **flags: Any) -> float:
    """Let the receiver refuse the first bucket of the first broadcast; return the seconds until the push raised.

    The communicator of NCCL is built in that broadcast, and nobody else takes part in it. The next push must arrive whole.
    """
    with receiving(folder, device, place, **flags) as (sync, receiver):
        receiver.fault("refuse", "update_weights_from_distributed", 0)
        start = time.monotonic()
        with pytest.raises(EngineError, match="is refused"):
            sync.push(on(device, 1), "1")
        took = time.monotonic() - start
        assert took < DETECTED_SECONDS
        receiver.fault("none", "")
        sync.connect([receiver.handle])
        sync.push(on(device, 2), "2")
        assert holds(receiver, weights(2))
        return took
