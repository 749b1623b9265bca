"""Weights through memory of one GPU, by CUDA IPC, and through pinned host memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from slime.arguments.trainer import PACK_BYTES
from slime.weight_sync.requests import BucketBuffer, unpack
from slime.weight_sync.segments import Mappings, Segment, pin, unpin
from tests.helpers.push_checks import check_pushes, check_slots

CUDA = torch.device("cuda", 0)


@pytest.mark.parametrize("share_gpu", [True, False])
def test_a_process_on_the_gpu_holds_the_weights_bit_for_bit(tmp_path: Path, share_gpu: bool) -> None:
    flags = {"update_weight_transport": "shared", "share_gpu": share_gpu}
    check_pushes(tmp_path, CUDA, "cuda:0", **flags)


@pytest.mark.parametrize("share_gpu", [True, False])
def test_slots_are_made_once_and_outlive_a_receiver(tmp_path: Path, share_gpu: bool) -> None:
    """The trainer's memory is the same after every push, although the receiver that had its handles was killed."""
    check_slots(tmp_path, CUDA, "cuda:0", share_gpu=share_gpu)


@pytest.mark.parametrize("staged", [True, False])
def test_packing_casts_as_torch_does(staged: bool) -> None:
    """Float32 parameters, one of them larger than what is packed at once, in any layout, into bfloat16."""
    torch.manual_seed(0)
    large = torch.randn(PACK_BYTES // 2 + 5, device=CUDA)
    special = torch.tensor(
        [1.00390625, 1.01171875, 1e-40, -1e-40, 3.4e38, float("inf"), -float("inf"), -0.0], device=CUDA
    )
    weights = {"large": large, "special": special, "turned": torch.randn(300, 70, device=CUDA).t(), "scale": special[0]}
    capacity = 2 * large.numel() + 100_000
    segment = Segment(capacity, pinned=True) if staged else None
    room = None if segment is None else lambda turn, size: segment.data
    buffer = BucketBuffer(capacity, CUDA, torch.bfloat16, room, staged=staged)
    (bucket,) = buffer.fill(weights.items())
    assert bucket.ready is not None
    bucket.ready.synchronize()
    for name, value in unpack(bucket.data, bucket.names, bucket.dtypes, bucket.shapes):
        expected = weights[name].to(torch.bfloat16).to(bucket.data.device)
        assert torch.equal(value.view(torch.int16), expected.view(torch.int16)), name
    if segment is not None:
        segment.close()


def test_packing_is_one_launch_for_many_tensors() -> None:
    weights = [(str(number), torch.randn(1000, device=CUDA)) for number in range(100)]
    buffer = BucketBuffer(1 << 20, CUDA, torch.bfloat16)
    list(buffer.fill(weights))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        list(buffer.fill(weights))
        torch.cuda.synchronize()
    kernels = [event for event in profile.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    assert 0 < len(kernels) < 10


def test_a_mapping_is_pinned_once_and_unpinned_with_the_last_use() -> None:
    segment, mappings = Segment(1 << 20, pinned=True), Mappings()
    torch.zeros(1, device=CUDA)
    data = mappings.bytes_of(segment.source(1 << 20))
    assert mappings.bytes_of(segment.source(1 << 20)).data_ptr() == data.data_ptr()
    with pytest.raises(RuntimeError, match="CUDA cannot pin"):
        pin(data)  # it is already
    assert torch.ones(3, device=CUDA).sum().item() == 3.0, "the error is not that of the next kernel"
    mappings.close()
    pin(data)
    unpin(data)
    segment.close()


def test_memory_that_cuda_cannot_pin_is_named() -> None:
    with pytest.raises(RuntimeError, match="cannot pin 0 MiB of host memory"):
        pin(torch.empty(0, dtype=torch.uint8))
    assert torch.ones(3, device=CUDA).sum().item() == 3.0
