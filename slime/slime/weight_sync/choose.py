"""Which transport a run's flags ask for."""

from __future__ import annotations

from argparse import Namespace

import torch

from slime.weight_sync import WeightSync
from slime.weight_sync.broadcast import BroadcastWeightSync


def make_weight_sync(args: Namespace, *, device: torch.device, address: str) -> WeightSync:
    """Return this trainer rank's transport; ``address`` is where engines reach rank 0."""
    return BroadcastWeightSync(args, device=device, address=address)
