"""Learning rates by step, and flat buckets as the engine unpacks them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lab.testkit.trainer import trainer_args
from slime.backends.trainer.metrics import mean_of_steps
from slime.backends.trainer.schedule import Schedule
from slime.exceptions import CheckpointError
from slime.weight_sync.requests import BucketBuffer, unpack


def rates(steps: int, total: int | None = None, **changes: Any) -> list[float]:
    schedule = Schedule(trainer_args("", lr=1.0, **changes), total)
    found = []
    for _ in range(steps):
        found.append(round(schedule.lr(), 6))
        schedule.steps += 1
    return found


def test_schedules_by_hand() -> None:
    assert rates(3) == [1.0, 1.0, 1.0]
    assert rates(3, lr_warmup_iters=2) == [0.5, 1.0, 1.0]
    assert rates(6, 4, lr_decay_style="linear", min_lr=0.2) == [1.0, 0.8, 0.6, 0.4, 0.2, 0.2]
    assert rates(5, lr_decay_style="cosine", lr_decay_iters=4)[::2] == [1.0, 0.5, 0.0]
    assert rates(4, 4, lr_decay_style="linear", lr_warmup_fraction=0.5) == [0.5, 1.0, 1.0, 0.5]


def test_warm_up_stable_decay_by_hand() -> None:
    flags = {"lr_decay_style": "WSD", "lr_decay_iters": 6, "lr_wsd_decay_iters": 4}
    assert rates(8, lr_wsd_decay_style="linear", **flags) == [1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    assert rates(7, lr_wsd_decay_style="exponential", **flags)[2::2] == [1.0, 0.414214, 0.0]
    assert rates(7, lr_wsd_decay_style="minus_sqrt", **flags)[2:4] == [1.0, 0.5]
    assert rates(7, lr_wsd_decay_style="cosine", min_lr=0.5, **flags)[2::2] == [1.0, 0.75, 0.5]
    assert rates(4, lr_warmup_iters=4, **flags) == [0.25, 0.5, 0.75, 1.0]


def test_a_resumed_schedule_is_that_of_the_flags_or_that_of_the_checkpoint() -> None:
    earlier = Schedule(trainer_args("", lr=1.0, lr_decay_style="linear", lr_decay_iters=4), None)
    earlier.steps = 2
    later = Schedule(trainer_args("", lr=3.0), None)
    later.load_state_dict(earlier.state_dict())
    assert (later.steps, later.lr()) == (2, 3.0)
    later.load_state_dict(earlier.state_dict(), everything=True)
    assert (later.steps, later.lr()) == (2, 0.5)
    with pytest.raises(CheckpointError, match="remove --use-checkpoint-lr-scheduler"):
        later.load_state_dict({"steps": 2}, everything=True)


def test_a_decay_without_length_is_refused() -> None:
    with pytest.raises(ValueError, match="--lr-decay-iters"):
        rates(1, None, lr_decay_style="cosine")
    with pytest.raises(ValueError, match="constant, linear, cosine, WSD"):
        rates(1, None, lr_decay_style="wsd")


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=12), st.integers(1, 100), st.sampled_from(["float32", "bfloat16"])
)
def test_buckets_hold_every_weight_once_and_in_order(sizes: list[int], capacity: int, dtype: str) -> None:
    weights = [(f"w{i}", torch.arange(size).to(getattr(torch, dtype)) + i) for i, size in enumerate(sizes)]
    received, last = [], []
    for bucket in BucketBuffer(capacity, torch.device("cpu"), getattr(torch, dtype)).fill(iter(weights)):
        start = 0
        last.append(bucket.is_last)
        assert bucket.data.numel() <= capacity or len(bucket.names) == 1
        for name, kind, shape in zip(bucket.names, bucket.dtypes, bucket.shapes, strict=True):
            size = torch.Size(shape).numel() * getattr(torch, kind).itemsize
            value = bucket.data[start : start + size].clone().view(getattr(torch, kind)).view(shape)
            received.append((name, value))
            start += size
        assert start == bucket.data.numel()
    assert last == [False] * (len(last) - 1) + [True]
    assert [name for name, _ in received] == [name for name, _ in weights]
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(received, weights, strict=True))


def test_scalars_come_out_of_a_bucket_as_they_went_in() -> None:
    weights = {"scale": torch.tensor(3.5), "weight": torch.arange(6.0).view(2, 3)}
    (bucket,) = BucketBuffer(1 << 10, torch.device("cpu"), torch.float32).fill(weights.items())
    found = dict(unpack(bucket.data, bucket.names, bucket.dtypes, bucket.shapes))
    assert list(found) == list(weights)
    assert all(found[name].shape == value.shape and torch.equal(found[name], value) for name, value in weights.items())


def test_a_buffer_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="--update-weight-buffer-size"):
        BucketBuffer(0, torch.device("cpu"), torch.float32)


def test_metrics_of_several_steps() -> None:
    steps = [
        {"loss": 1.0, "lr-pg_0": 0.1, "skipped_steps": 1.0},
        {"loss": 3.0, "tis": 2.0, "lr-pg_0": 0.2, "skipped_steps": 1.0},
    ]
    assert mean_of_steps(steps) == {"loss": 2.0, "tis": 2.0, "lr-pg_0": 0.2, "skipped_steps": 2.0}
