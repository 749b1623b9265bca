"""Which transport the flags choose."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slime.weight_sync import pushes
from slime.weight_sync.pushes import TRANSPORTS, make_weight_sync
from tests.helpers.weight_receivers import CPU, sync_args

OTHER = torch.device("meta")


@pytest.mark.parametrize(
    ("mode", "transport", "device", "expected"),
    [
        ("full", "nccl", CPU, "BroadcastWeightSync"),
        ("full", "disk", CPU, "DiskWeightSync"),
        ("full", "shared", CPU, "StreamWeightSync"),
        ("full", "shared", OTHER, TRANSPORTS["shared"].__name__),
        ("delta", "nccl", CPU, "DeltaWeightSync"),
        ("adapter", "nccl", CPU, "AdapterWeightSync"),
    ],
)
def test_a_push_has_the_transport_of_the_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str, transport: str, device: torch.device, expected: str
) -> None:
    for made in (pushes.AdapterWeightSync, pushes.DeltaWeightSync, pushes.StreamWeightSync):
        monkeypatch.setattr(made, "__init__", lambda self, args, *, device, address: None)
    for made in TRANSPORTS.values():
        monkeypatch.setattr(made, "__init__", lambda self, args, *, device, address: None)
    args = sync_args(tmp_path, update_weight_mode=mode, update_weight_transport=transport)
    assert type(make_weight_sync(args, device=device, address="127.0.0.1")).__name__ == expected
