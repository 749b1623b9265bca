"""Checksums of parts make up that of the whole, one changed bit shows, and an engine's parts are found through its loader."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from slime.exceptions import WeightsDifferError
from slime.weight_sync import requests as checksums_module
from slime.weight_sync.engine_loader import held_checksums
from slime.weight_sync.engine_sync import check
from slime.weight_sync.requests import MODULUS, Checksums, checksum

DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64]


def whole(tensor: Tensor) -> int:
    return checksum(tensor, torch.empty_like(tensor, device="meta"))


def by_hand(tensor: Tensor) -> int:
    size = tensor.element_size()
    data = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    signed = tensor.dtype != torch.uint8
    values = [int.from_bytes(data[i : i + size], "little", signed=signed) for i in range(0, len(data), size)]
    return sum(value * ((index * 0x9E3779B97F4A7C15) | 1) for index, value in enumerate(values)) % MODULUS


@given(st.lists(st.integers(1, 6), min_size=1, max_size=3), st.sampled_from(DTYPES), st.integers(0, 9), st.data())
def test_any_split_adds_up_and_one_bit_shows(shape: list[int], dtype: torch.dtype, seed: int, data: Any) -> None:
    generator = torch.Generator().manual_seed(seed)
    tensor = (torch.randn(shape, generator=generator) * 50).to(dtype)
    place = torch.empty_like(tensor, device="meta")
    assert whole(tensor) == by_hand(tensor)
    dimension = data.draw(st.integers(0, len(shape) - 1))
    cut = data.draw(st.integers(0, shape[dimension]))
    sizes = [cut, shape[dimension] - cut]
    parts = zip(tensor.split(sizes, dimension), place.split(sizes, dimension), strict=True)
    assert sum(checksum(part, where) for part, where in parts if part.numel()) % MODULUS == whole(tensor)
    changed = tensor.clone()
    changed.view(torch.uint8).view(-1)[data.draw(st.integers(0, tensor.nbytes - 1))] ^= 4
    assert whole(changed) != whole(tensor)


def test_large_tensors_are_summed_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.randn(7, 5)
    at_once = whole(tensor)
    monkeypatch.setattr(checksums_module, "CHUNK", 11)
    assert whole(tensor) == at_once


class Fused:
    """Keeps q and k in one parameter, of which this rank has a half, as a tensor parallel engine does."""

    def __init__(self, rank: int, weights: dict[str, Tensor]) -> None:
        self.rank = rank
        self.qk = torch.zeros(8, 4)
        self.norm = torch.zeros(4)
        self.load_weights(iter(weights.items()))

    def load_weights(self, weights: Any) -> None:
        for name, value in weights:
            if name == "norm":
                self.norm.data.copy_(value)
            else:
                start = 0 if name == "q" else 4
                self.qk.data.narrow(0, start, 4).copy_(value.narrow(0, 4 * self.rank, 4))


def found(engine: list[Fused], expected: Checksums) -> dict[str, list[tuple[int, int]]]:
    held = [held_checksums(rank, expected.shapes, expected.dtypes) for rank in engine]
    return {name: [part[name] for part in held if name in part] for name in expected.found}


def test_the_parts_of_fused_and_split_parameters_are_compared() -> None:
    weights = {"q": torch.randn(8, 4), "norm": torch.randn(4), "k": torch.randn(8, 4)}
    expected = Checksums()
    assert dict(expected.of_all(iter(weights.items()))) == weights
    engine = [Fused(rank, weights) for rank in range(2)]
    before = [rank.qk.clone() for rank in engine]
    check(expected, found(engine, expected), 0)
    assert all(torch.equal(rank.qk, kept) for rank, kept in zip(engine, before, strict=True)), (
        "looking changed a weight"
    )
    engine[1].qk[5, 2] += 1
    with pytest.raises(WeightsDifferError, match="k on engine 3"):
        check(expected, found(engine, expected), 3)
    engine[0].norm[0] += 1
    with pytest.raises(WeightsDifferError, match="norm on engine 0"):
        check(expected, found(engine, expected), 0)
    with pytest.raises(WeightsDifferError, match="holds 16 of the 32 elements of q"):
        check(expected, found(engine[:1], expected), 0)


def test_a_narrower_dtype_cannot_be_compared() -> None:
    engine = Fused(0, {"norm": torch.ones(4)})
    engine.norm = engine.norm.to(torch.bfloat16)
    with pytest.raises(TypeError, match=r"norm is torch\.bfloat16 here and torch\.float32"):
        held_checksums(engine, {"norm": [4]}, {"norm": "float32"})


def test_a_bias_that_the_engine_keeps_in_float32_is_compared() -> None:
    """As a router's: the trainer sends bfloat16."""
    sent = {"norm": torch.tensor([1.0, -0.0, torch.nan, 1e-3]).to(torch.bfloat16)}
    engine, expected = Fused(0, sent), Checksums()
    assert engine.norm.dtype == torch.float32
    list(expected.of_all(iter(sent.items())))
    check(expected, found([engine], expected), 0)
    engine.norm[3] += 1e-7  # rounds to the same bfloat16
    assert torch.equal(engine.norm[3:].to(torch.bfloat16), sent["norm"][3:])
    with pytest.raises(WeightsDifferError, match="norm on engine 0"):
        check(expected, found([engine], expected), 0)


class Scalars:
    """Fills in tensors of one element, as SGLang's default loader does."""

    def __init__(self) -> None:
        self.parameters = {
            "number": torch.zeros(()),
            "list": torch.zeros(1),
            "whole": torch.zeros(1, dtype=torch.int32),
        }

    def load_weights(self, weights: Any) -> None:
        for name, value in weights:
            self.parameters[name].data.fill_(value.item())


def test_tensors_of_one_element_are_compared() -> None:
    sent = {"number": torch.tensor(0.5), "list": torch.tensor([2.5]), "whole": torch.tensor([-3], dtype=torch.int32)}
    engine, expected = Scalars(), Checksums()
    list(expected.of_all(iter(sent.items())))
    engine.load_weights(sent.items())

    def compare() -> None:
        held = held_checksums(engine, expected.shapes, expected.dtypes)
        check(expected, {name: [part] for name, part in held.items()}, 0)

    compare()
    assert engine.parameters == sent, "looking changed nothing"
    engine.parameters["list"] += 1
    with pytest.raises(WeightsDifferError, match="list on engine 0"):
        compare()


def test_a_loader_that_computes_with_a_value_cannot_be_compared() -> None:
    class Doubling(Scalars):
        def load_weights(self, weights: Any) -> None:
            for name, value in weights:
                self.parameters[name].data.fill_(2 * value.item())

    with pytest.raises(NotImplementedError, match="computes with the value of list"):
        held_checksums(Doubling(), {"list": [1]}, {"list": "float32"})
