"""Memory that is given away and comes back: the same tensors with the same bytes, views and strides; values meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from slime.backends.trainer import host_memory
from slime.backends.trainer.host_memory import HostMemory, storage_of

CPU = torch.device("cpu")


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostMemory]:
    monkeypatch.setattr(host_memory.gc, "collect", lambda: 0)  # takes long in the process of all tests
    memory = HostMemory(CPU)
    yield memory
    memory.close()


def tensors() -> list[Tensor]:
    """Several dtypes and sizes, a parameter, and two views of one memory."""
    torch.manual_seed(0)
    flat = torch.randn(30)
    some = [torch.randn(3, 5).bfloat16(), torch.arange(7), torch.nn.Parameter(torch.randn(2, 2)), torch.tensor(2.5)]
    return [*some, flat[:10].view(2, 5), flat[10:].view(4, 5).t()]


def test_what_comes_back_is_what_was_given_away(host: HostMemory) -> None:
    given = tensors()
    before = [tensor.detach().clone() for tensor in given]
    for _ in range(2):
        size = host.take(given)
        assert size == sum({storage_of(t)._cdata: t.untyped_storage().nbytes() for t in before[:4]}.values()) + 30 * 4
        assert host.is_used
        assert not any(storage_of(tensor).nbytes() for tensor in given)
        host.give_back()
        assert not host.is_used
        assert all(torch.equal(tensor, value) for tensor, value in zip(given, before, strict=True))
    given[4].fill_(7.0)
    assert given[4].data_ptr() + 40 == given[5].data_ptr(), "the views have one memory still"


def test_values_can_be_read_meanwhile(host: HostMemory) -> None:
    given = tensors()
    before = [tensor.detach().clone() for tensor in given]
    assert all(host.value(tensor).data_ptr() == tensor.data_ptr() for tensor in given), "no copy of what is there"
    stays = torch.ones(3)
    host.take(given)
    assert all(torch.equal(host.value(tensor), value) for tensor, value in zip(given, before, strict=True))
    assert torch.equal(host.value(stays), stays)
    assert not any(storage_of(tensor).nbytes() for tensor in given)


def test_zeros_are_not_kept_and_come_back_as_zeros(host: HostMemory) -> None:
    gradients, weights = torch.zeros(1 << 20), torch.ones(8)
    part = gradients[:4]
    assert host.take([weights, part], zeros=[gradients]) == (1 << 22) + 32
    assert host._host().numel() < 1 << 22, "the gradients are not among what the host keeps"
    assert torch.equal(host.value(part), torch.zeros(4))
    host.give_back()
    assert torch.equal(gradients, torch.zeros(1 << 20))
    assert torch.equal(weights, torch.ones(8))


def test_host_memory_grows_and_serves_again(host: HostMemory) -> None:
    small, large = torch.ones(4), torch.arange(1 << 20)
    host.take([small])
    first = host._segment
    host.give_back()
    host.take([small])
    assert host._segment is first
    host.give_back()
    host.take([small, large])
    assert host._segment is not first
    host.give_back()
    assert torch.equal(large, torch.arange(1 << 20))


def test_everything_stays_where_the_host_has_no_room(host: HostMemory, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(size: int, *, pinned: bool) -> None:
        raise MemoryError(f"no {size} bytes")

    given = tensors()
    before = [tensor.detach().clone() for tensor in given]
    with monkeypatch.context() as patch:
        patch.setattr(host_memory, "Segment", full)
        with pytest.raises(MemoryError):
            host.take(given)
    assert not host.is_used
    assert all(torch.equal(host.value(tensor), value) for tensor, value in zip(given, before, strict=True))
    assert host.take(given) > 0


def test_what_is_elsewhere_stays(host: HostMemory) -> None:
    elsewhere = torch.empty(4, device="meta")
    assert host.take([elsewhere, torch.empty(0)]) == 0
    assert not host.is_used
