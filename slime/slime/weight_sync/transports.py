"""Choose the transport that a run's flags request."""

from __future__ import annotations

import torch

from slime.args import Arguments
from slime.weight_sync import WeightSync
from slime.weight_sync.adapter import AdapterWeightSync
from slime.weight_sync.broadcast import BroadcastWeightSync
from slime.weight_sync.delta_sync import DeltaWeightSync
from slime.weight_sync.disk import DiskWeightSync
from slime.weight_sync.shared_memory import SharedMemoryWeightSync
from slime.weight_sync.shared_stream import StreamWeightSync

TRANSPORTS = {"nccl": BroadcastWeightSync, "shared": SharedMemoryWeightSync, "disk": DiskWeightSync}


def make_weight_sync(args: Arguments, *, device: torch.device, address: str) -> WeightSync:
    """Return this trainer rank's transport; ``address`` is where engines reach rank 0."""
    if args.update_weight_mode == "adapter":
        return AdapterWeightSync(args, device=device, address=address)
    if args.update_weight_mode == "delta":
        return DeltaWeightSync(args, device=device, address=address)
    if args.update_weight_transport == "shared" and device.type == "cpu":
        return StreamWeightSync(args, device=device, address=address)
    return TRANSPORTS[args.update_weight_transport](args, device=device, address=address)
