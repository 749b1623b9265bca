"""Weights through memory of one GPU, by CUDA IPC, and through pinned host memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.weight_receiver import ReceiverProcess
from slime.weight_sync.choose import make_weight_sync
from tests.helpers.weight_receivers import SPEC, holds, rank_zero, sync_args, weights


@pytest.mark.parametrize("share_gpu", [True, False])
def test_a_process_on_the_gpu_holds_the_weights_bit_for_bit(tmp_path: Path, share_gpu: bool) -> None:
    args = sync_args(tmp_path, update_weight_transport="shared", share_gpu=share_gpu, check_weight_update_equal=True)
    receiver = ReceiverProcess(args, SPEC, tmp_path, device="cuda")
    sync = make_weight_sync(args, device=torch.device("cuda", 0), address="127.0.0.1")
    try:
        with rank_zero():
            sync.connect([receiver.handle])
            for version in range(3):
                found = weights(version)
                sync.push(((name, value.cuda()) for name, value in found.items()), str(version))
                assert holds(receiver, found)
    finally:
        sync.close()
        receiver.stop()
