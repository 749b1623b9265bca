"""Weights on their way into a bucket: many in one copy that casts them, few of them in memory, two buffers, both full before a pause."""

from __future__ import annotations

import json
import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from groundwork.machine import this_host
from slime.weight_sync import engine_sync, requests, shared_memory
from slime.weight_sync.remote_engine import RemoteEngine
from slime.weight_sync.requests import Bucket, BucketBuffer, read_request, unpack
from slime.weight_sync.segments import HUGE_PAGE, Segment
from slime.weight_sync.shared_memory import SharedMemoryWeightSync
from tests.helpers.weight_receivers import CPU, sync_args

PACKED = 64
"""Bytes that are packed at once here."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "PACK_BYTES", PACKED)
    monkeypatch.setattr(engine_sync.dist, "get_rank", lambda: 0)


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tensors each copy takes."""
    counted: list[int] = []
    copy = torch._foreach_copy_

    def count(places: Any, parts: Any) -> Any:
        counted.append(len(parts))
        return copy(places, parts)

    monkeypatch.setattr(torch, "_foreach_copy_", count)
    return counted


def some_weights() -> dict[str, Tensor]:
    special = [1.00390625, 1.01171875, -1.00390625, 1e-40, -1e-40, 3.4e38, float("inf"), -float("inf"), 0.0, -0.0]
    return {
        "special": torch.tensor(special),
        "larger than what is packed at once": torch.randn(3, 70),
        "turned": torch.randn(6, 5).t(),
        "one number": torch.tensor(3.5),
        "nothing": torch.empty(0, 4),
        "in float64": torch.randn(7, dtype=torch.float64),
        "in bfloat16": torch.randn(9).to(torch.bfloat16),
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("staged", [False, True])
def test_what_is_packed_has_the_bits_of_a_cast(dtype: torch.dtype, staged: bool) -> None:
    weights, segment = some_weights(), Segment(4096)
    room = (lambda turn, size: segment.data) if staged else None
    (bucket,) = BucketBuffer(4096, CPU, dtype, room, staged=staged).fill(weights.items())
    found = dict(unpack(bucket.data, bucket.names, bucket.dtypes, bucket.shapes))
    assert list(found) == list(weights)
    bits = torch.int32 if dtype is torch.float32 else torch.int16
    for name, value in weights.items():
        expected = value.to(dtype).contiguous()
        assert found[name].shape == value.shape
        assert torch.equal(found[name].reshape(-1).view(bits), expected.reshape(-1).view(bits)), name
    segment.close()


def test_small_weights_share_a_copy(launches: list[int]) -> None:
    weights = [(str(number), torch.ones(4)) for number in range(20)]  # 8 bytes each in bfloat16
    list(BucketBuffer(1000, CPU, torch.bfloat16).fill(weights))
    assert launches == [8, 8, 4]


def test_weights_of_one_dtype_share_a_copy_whatever_lies_between_them(launches: list[int]) -> None:
    dtypes = [torch.float32, torch.bfloat16, torch.float32, torch.bfloat16]
    weights = [(str(number), torch.full((4,), float(number), dtype=dtype)) for number, dtype in enumerate(dtypes)]
    (bucket,) = BucketBuffer(1000, CPU, torch.bfloat16).fill(weights)
    assert launches == [2, 2]
    found = dict(unpack(bucket.data, bucket.names, bucket.dtypes, bucket.shapes))
    assert [value.tolist() for value in found.values()] == [[number] * 4 for number in range(4)]


def test_a_push_holds_few_weights_besides_its_buffers() -> None:
    """Those that wait to be packed, and the next."""
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    def gather() -> Iterator[tuple[str, Tensor]]:
        nonlocal most
        for number in range(100):
            tensor = torch.ones(4)
            alive.add(tensor.untyped_storage())
            most = max(most, len(alive))
            yield str(number), tensor
            del tensor

    list(BucketBuffer(1000, CPU, torch.float32).fill(gather()))
    assert most == PACKED // 16 + 1


def test_a_large_weight_enlarges_the_same_buffer_in_each_push() -> None:
    buffer = BucketBuffer(16, CPU, torch.float32)
    weights = [("embedding", torch.ones(100)), ("b", torch.ones(4)), ("c", torch.ones(4))]
    for _ in range(2):
        assert len(list(buffer.fill(weights))) == 3
    assert [held.numel() for held in buffer._buffers] == [400, 16]


class Engine:
    """Answers everything; writes down what it is asked in ``log``."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any, **keywords: Any) -> Any:
            self.log.append(name)
            answer: Future[Any] = Future()
            answer.set_result([this_host()] if name == "hosts" else 1)
            return SimpleNamespace(future=lambda: answer)

        return SimpleNamespace(remote=remote)


def push(folder: Path, log: list[str], number: int) -> SharedMemoryWeightSync:
    """Push ``number`` weights, each a bucket of its own."""

    def gather() -> Iterator[tuple[str, Tensor]]:
        for index in range(number):
            log.append(f"gather {index}")
            yield str(index), torch.ones(512)

    sync = SharedMemoryWeightSync(sync_args(folder), device=CPU, address="127.0.0.1")
    sync.connect([RemoteEngine(Engine(log))])
    log.clear()
    sync.push(gather(), "1")
    return sync


def test_both_slots_are_full_before_requests_are_held(tmp_path: Path) -> None:
    log: list[str] = []
    push(tmp_path, log, 4).close()
    load = "update_weights_from_tensor"
    before = [f"gather {index}" for index in range(3)]  # the third tells that the second bucket is full
    held = ["pause_generation", "begin_weight_update", load, load, "gather 3", load, load]
    assert log == [*before, *held, "end_weight_update", "continue_generation"]


def test_nothing_is_gathered_while_requests_of_a_small_model_are_held(tmp_path: Path) -> None:
    log: list[str] = []
    push(tmp_path, log, 2).close()
    assert log.index("pause_generation") == 2


def test_a_slot_is_packed_before_its_request_is_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The request goes to another process, which no order of kernels reaches: the trainer waits for the event."""
    log: list[str] = []
    end = Bucket.ended

    def ended(bucket: Bucket, device: torch.device, *, is_last: bool) -> Bucket:
        end(bucket, device, is_last=is_last).ready = SimpleNamespace(  # pyright: ignore[reportAttributeAccessIssue]
            synchronize=lambda: log.append("packed")
        )
        return bucket

    monkeypatch.setattr(Bucket, "ended", ended)
    push(tmp_path, log, 3).close()
    sent = [word for word in log if word in ("packed", "update_weights_from_tensor")]
    assert sent == ["packed", "update_weights_from_tensor"] * 3


@pytest.mark.parametrize("between", [0, 1])
def test_no_slot_grows_for_an_lm_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, between: int) -> None:
    """Whichever slot it gets, it is as large from the start as the memory plan says."""
    monkeypatch.setattr(requests, "PACK_BYTES", HUGE_PAGE)
    made: list[int] = []
    monkeypatch.setattr(shared_memory, "Segment", lambda size, **rest: made.append(size) or Segment(size, **rest))
    args = sync_args(tmp_path)
    config = {"hidden_size": 8, "vocab_size": HUGE_PAGE // 8, "intermediate_size": 8, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "model_type": "qwen3", "tie_word_embeddings": False}
    (tmp_path / "config.json").write_text(json.dumps(config | heads))
    sync = SharedMemoryWeightSync(args, device=CPU, address="127.0.0.1")
    sync.connect([RemoteEngine(Engine([]))])
    large, other = torch.ones(HUGE_PAGE // 8, 8), torch.ones(512)
    sync.push(iter([("embedding", large), *[(str(number), other) for number in range(between)], ("head", large)]), "1")
    sync.close()
    assert made == [large.nbytes] * 2
    assert large.nbytes > HUGE_PAGE


def test_slots_survive_a_connection_and_go_with_the_transport(tmp_path: Path) -> None:
    log: list[str] = []
    sync = push(tmp_path, log, 3)
    slots = list(sync._slots)
    sync.connect([RemoteEngine(Engine(log))])
    assert sync._slots == slots
    sync.close()
    assert sync._slots == [None, None]


def test_a_request_is_read_back() -> None:
    request = {"operation": "nothing", "names": ["ä", "b"]}
    assert read_request([(requests.REQUEST, requests.request_tensor(request))]) == request
