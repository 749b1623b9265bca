"""Changes applied one after the other give the trainer's weights, bit for bit, and never to another version."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slime.weight_sync import delta
from slime.weight_sync.delta import WHOLE, Change, Mirror, Sender

DTYPES = [torch.float32, torch.bfloat16, torch.uint8]


def data_of(change: Change) -> Tensor:
    return torch.cat([*change.data, torch.empty(0, dtype=torch.uint8)])


def apply(mirror: Mirror, change: Change, base: str) -> dict[str, Tensor]:
    return dict(mirror.apply(data_of(change), change.names, change.dtypes, change.shapes, change.counts, base))


def the_same(one: Tensor, other: Tensor) -> bool:
    return one.dtype == other.dtype and torch.equal(one.view(torch.uint8), other.view(torch.uint8))


@given(
    st.lists(st.tuples(st.integers(1, 40), st.sampled_from(DTYPES)), min_size=1, max_size=4),
    st.lists(st.integers(0, 1000), min_size=1, max_size=4),
    st.integers(1, 200),
)
def test_any_number_of_changes_is_exact(kinds: list[tuple[int, torch.dtype]], seeds: list[int], limit: int) -> None:
    weights = {f"w{i}": torch.zeros(size).to(dtype) for i, (size, dtype) in enumerate(kinds)}
    sender, mirror, engine, base = Sender(), Mirror(), {}, ""
    for version, seed in enumerate(seeds):
        parts = list(sender.changes(weights.items(), limit))
        assert [last for _, last in parts] == [False] * (len(parts) - 1) + [True]
        for part, _ in parts:
            assert part.nbytes == data_of(part).numel()
            assert part.nbytes <= max(limit, max(value.nbytes for value in weights.values()))
            engine |= {name: value.clone() for name, value in apply(mirror, part, base).items()}
        mirror.version = base = str(version)
        assert set(engine) == set(weights)
        assert all(the_same(engine[name], value) for name, value in weights.items())
        generator = torch.Generator().manual_seed(seed)
        for value in weights.values():
            chosen = torch.rand(value.shape, generator=generator) < seed / 1000
            value[chosen] = (torch.randn(value.shape, generator=generator) * 9).to(value.dtype)[chosen]


@given(st.integers(1, 60), st.lists(st.integers(0, 59), max_size=12), st.sampled_from(DTYPES))
def test_chunks_make_no_difference(size: int, changed: list[int], dtype: torch.dtype) -> None:
    old = torch.arange(size).to(dtype)
    new = old.clone()
    new[[position % size for position in changed]] = 99
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delta, "CHUNK", 7)
        sender, mirror = Sender(), Mirror()
        for version, value in enumerate((old, new)):
            ((change, _),) = sender.changes([("w", value)], 1 << 20)
            apply(mirror, change, str(version - 1) if version else "")
            mirror.version = str(version)
            assert the_same(mirror._weights["w"], value)


def test_only_what_changed_is_sent_and_the_smaller_form() -> None:
    weights = {"few": torch.zeros(100, dtype=torch.bfloat16), "most": torch.zeros(4), "none": torch.ones(5)}
    sender = Sender()
    ((first, _),) = sender.changes(weights.items(), 1 << 20)
    assert first.counts == [WHOLE] * 3
    weights["few"][[3, 50]] = -0.0  # equal in value, not in bits
    weights["most"][:3] = 1
    ((second, _),) = sender.changes(weights.items(), 1 << 20)
    assert (second.names, second.counts) == (["few", "most"], [2, WHOLE])
    assert second.nbytes == 2 * (4 + 2) + 16
    ((third, last),) = sender.changes(weights.items(), 1 << 20)
    assert (third.names, third.nbytes, last) == ([], 0, True)
    sender.forget()
    ((again, _),) = sender.changes(weights.items(), 1 << 20)
    assert again.counts == [WHOLE] * 3


def test_a_change_of_another_version_is_refused() -> None:
    mirror = Mirror()
    with pytest.raises(RuntimeError, match="weights 4 cannot be applied to weights never received"):
        mirror.apply(torch.empty(0, dtype=torch.uint8), [], [], [], [], "4")
