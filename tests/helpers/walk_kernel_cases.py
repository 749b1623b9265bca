"""Tests of the walk's Triton kernels, for a GPU (`tests/gpu/test_walk_kernels_gpu.py`) and for Triton's interpreter.

`tests/integration/test_walk_kernels.py` runs them in the interpreter, in a process of their own: they need `TRITON_INTERPRET=1`
there, and Triton in reach of the imports.

Tolerances: log probabilities and entropies within :data:`NEAR` of float64, relative to the largest logit, which float32
rounds. A gradient's entry is converted once to the table's dtype (:data:`CONVERTED`, relative to the entry; the interpreter cuts
off where a GPU rounds to the nearest bfloat16), after float32 noise (:data:`NOISE`, relative to the largest gradient of a log
probability or entropy).
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

from groundwork.network import find_available_port
from lab.testkit.trainer import on_ranks
from slime.logprobs import walk_kernels
from slime.logprobs.response_rows import log_probs_of_head
from tests.helpers.vocab_ranks import check_head_of_kernel

DEVICE = torch.device("cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda")
NEAR, NOISE = 1e-6, 1e-6
CONVERTED = {torch.bfloat16: 2**-7, torch.float32: 1e-5}
LOWEST = -1e30


def walked(
    table: Tensor, ids: Tensor, widths: list[int], temperature: float, of_ids: Tensor, of_entropy: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return log probabilities, entropies and the gradient of a table of logits, in blocks of ``widths``."""
    table, ids = table.to(DEVICE), ids.to(DEVICE)
    largest = torch.full((len(table),), LOWEST, device=DEVICE)
    total, weighted, chosen = (torch.zeros(size, device=DEVICE) for size in (len(table), len(table), ids.shape))
    blocks, start = [], 0
    for width in widths:
        block = table[:, start : start + width].clone(memory_format=torch.contiguous_format)
        before = block.clone()
        walk_kernels.add_block(
            *(block, ids, (largest, total, weighted), chosen),
            **{"first": start, "temperature": temperature, "with_entropy": True},
        )
        assert torch.equal(block, before) or block.isnan().any()
        blocks.append((start, block))
        start += width
    assert start == table.size(1)
    entropy = total.log() - weighted / total
    over = [None if given is None else given.to(DEVICE) / temperature for given in (of_ids, of_entropy)]
    for first, block in blocks:
        walk_kernels.to_gradient(
            *(block, ids, chosen, (largest, total), over[0], entropy, over[1]), first=first, temperature=temperature
        )
    gradient = torch.cat([block for _, block in blocks], dim=1)
    log_probs = chosen - largest.unsqueeze(-1) - total.log().unsqueeze(-1)
    return log_probs.cpu(), entropy.cpu(), gradient.cpu()


def exact(
    table: Tensor, ids: Tensor, temperature: float, of_ids: Tensor, of_entropy: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same in float64; a logit of minus infinity has no part in entropies and gradients."""
    log_p = torch.log_softmax(table.double() / temperature, dim=-1)
    p = log_p.exp()
    entropy = -torch.where(p > 0, p * log_p, 0.0).sum(-1)
    gradient = -of_ids.double().sum(-1, keepdim=True) * p
    gradient.scatter_add_(-1, ids, of_ids.double())
    if of_entropy is not None:
        by_entropy = torch.where(p > 0, p * (log_p + entropy.unsqueeze(-1)), 0.0)
        gradient -= of_entropy.double().unsqueeze(-1) * by_entropy
    return log_p.gather(-1, ids), entropy, gradient / temperature


def compare(
    table: Tensor, ids: Tensor, widths: list[int], temperature: float = 1.0, *, by_entropy: bool = True
) -> None:
    """Compare the kernels with float64 for random gradients; see the module for the tolerances."""
    generator = torch.Generator().manual_seed(11)
    of_ids = torch.randn(ids.shape, generator=generator)
    of_entropy = torch.randn(len(ids), generator=generator) if by_entropy else None
    found = walked(table, ids, widths, temperature, of_ids, of_entropy)
    right = exact(table, ids, temperature, of_ids, of_entropy)
    scale = max(1.0, float(table[table > -torch.inf].abs().max()) / temperature)
    for mine, expected in zip(found[:2], right[:2], strict=True):
        torch.testing.assert_close(mine.double(), expected, atol=NEAR * scale, rtol=NEAR)
    noise = NOISE * max(1.0, float(of_ids.abs().sum(-1).max())) * max(1.0, scale) / temperature
    torch.testing.assert_close(found[2].double(), right[2], atol=noise, rtol=CONVERTED[table.dtype])


def logits(rows: int, columns: int, dtype: torch.dtype, *, spread: float = 3.0, seed: int = 0) -> Tensor:
    return (torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * spread).to(dtype)


def random_ids(rows: int, count: int, columns: int, seed: int = 1) -> Tensor:
    return torch.randint(0, columns, (rows, count), generator=torch.Generator().manual_seed(seed))


BOTH = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])


@BOTH
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("widths", [[1], [3], [1, 1, 1], [64, 64, 7], [257], [4096], [4097, 5], [9001, 640]], ids=str)
def test_any_width_of_blocks_gives_the_values_of_float64(
    widths: list[int], temperature: float, dtype: torch.dtype
) -> None:
    """From one column to more than a program loads at a time, with a last block that is not a multiple of anything."""
    columns = sum(widths)
    for by_entropy in (True, False):
        compare(logits(5, columns, dtype), random_ids(5, 1, columns), widths, temperature, by_entropy=by_entropy)


@BOTH
@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 70])
def test_any_number_of_ids_a_row_and_the_same_one_twice(count: int, dtype: torch.dtype) -> None:
    """More ids than columns: many repeat, in other tiles of ids too, and their gradients add up."""
    compare(logits(4, 41, dtype), random_ids(4, count, 41), [24, 17])
    compare(logits(4, 41, dtype), torch.full((4, count), 40), [24, 17])


@BOTH
def test_huge_logits_and_certain_tokens(dtype: torch.dtype) -> None:
    table = logits(6, 300, dtype, spread=1e4)
    table[1] = -3e4
    table[2, 7] = 9e4
    table[3] += 1e5
    ids = random_ids(6, 3, 300)
    ids[2, 0] = 7
    compare(table, ids, [128, 128, 44], 0.5)


@BOTH
def test_equal_logits(dtype: torch.dtype) -> None:
    table = logits(3, 50, dtype)
    table[0] = 0.0
    table[1] = 80.0
    table[2, ::7] = 11.0
    compare(table, random_ids(3, 4, 50), [20, 20, 10])


@BOTH
def test_minus_infinity_has_no_part(dtype: torch.dtype) -> None:
    """A few columns, a whole block of a row, and all but one column."""
    table = logits(4, 60, dtype)
    table[0, ::3] = -torch.inf
    table[1, :24] = -torch.inf
    table[2, 36:] = -torch.inf
    table[3, :59] = -torch.inf
    ids = torch.tensor([[1, 58], [30, 24], [0, 35], [59, 59]])
    compare(table, ids, [24, 24, 12])
    of_ids = torch.zeros(4, 1)
    log_probs, *_ = walked(table, torch.tensor([[0], [3], [59], [2]]), [24, 24, 12], 1.0, of_ids, None)
    assert torch.equal(log_probs, torch.full((4, 1), -torch.inf))


def test_a_nan_stays_in_its_row() -> None:
    table = logits(3, 20, torch.bfloat16)
    table[1, 4] = torch.nan
    log_probs, entropy, gradient = walked(table, random_ids(3, 1, 20), [12, 8], 1.0, torch.ones(3, 1), torch.ones(3))
    for values in (log_probs, entropy, gradient):
        assert values.isnan().flatten(1).any(-1).tolist() == [False, True, False] if values.dim() > 1 else True
    assert entropy.isnan().tolist() == [False, True, False]


# The walk around them

ROWS, WIDTH, VOCABULARY = 13, 8, 131


def outcome(
    kernel: Any, dtype: torch.dtype, *, chunk: int = 4, count: int = 3, with_entropy: bool = True
) -> list[Tensor]:
    """Return log probabilities, entropies and gradients of a head with a bias and a padded vocabulary."""
    generator = torch.Generator().manual_seed(3)
    hidden, weight, bias = (torch.randn(n, WIDTH, generator=generator) for n in (ROWS, VOCABULARY + 9, VOCABULARY + 9))
    leaves = [value.to(DEVICE, dtype).requires_grad_() for value in (hidden, weight, bias[:, :1])]
    pairs = [(leaves[0], leaves[1]), (leaves[0].new_ones(ROWS, 1), leaves[2])]
    ids = random_ids(ROWS, count, VOCABULARY).to(DEVICE)
    options = {"temperature": 0.7, "chunk": chunk, "with_entropy": with_entropy, "vocab_size": VOCABULARY}
    log_probs, entropy = log_probs_of_head(pairs, ids, kernel=kernel, **options)
    by_id, by_row = (torch.randn(size, generator=generator).to(DEVICE) for size in (ids.shape, ROWS))
    total = (log_probs * by_id).sum() + ((entropy * by_row).sum() if with_entropy else 0.0)
    return [log_probs, entropy, *torch.autograd.grad(total, leaves)]


@BOTH
@pytest.mark.parametrize("with_entropy", [True, False])
@pytest.mark.parametrize("chunk", [1, 4, 1000])
def test_the_walk_gives_what_it_gives_with_torch(chunk: int, with_entropy: bool, dtype: torch.dtype) -> None:
    """Values within 4e-6 (logits are below 32); gradients within float32's noise, in bfloat16 within two of its roundings."""
    sides = [outcome(kernel, dtype, chunk=chunk, with_entropy=with_entropy) for kernel in ("triton", "torch")]
    for place, (mine, right) in enumerate(zip(*sides, strict=True)):
        near = 2**-7 if place > 1 and dtype == torch.bfloat16 else 4e-6
        size = max(1.0, float(right.detach().abs().max()))
        torch.testing.assert_close(mine.float() / size, right.float() / size, atol=near, rtol=0.0)
    if not with_entropy:
        assert not sides[0][1].any()


def test_a_second_backward_pass_gives_the_same() -> None:
    """The block that the first one turned into a gradient is computed again."""
    hidden = logits(9, WIDTH, torch.bfloat16).to(DEVICE)
    weight = logits(VOCABULARY, WIDTH, torch.bfloat16, seed=2).to(DEVICE).requires_grad_()
    ids = random_ids(9, 2, VOCABULARY).to(DEVICE)
    total = log_probs_of_head([(hidden, weight)], ids, temperature=0.7, chunk=4, kernel="triton")[0].sum()
    [first] = torch.autograd.grad(total, weight, retain_graph=True)
    [second] = torch.autograd.grad(total, weight)
    assert torch.equal(first, second)


def test_no_rows_give_nothing_and_a_gradient_of_zero() -> None:
    hidden, weight = (torch.randn(rows, WIDTH, device=DEVICE, requires_grad=True) for rows in (0, VOCABULARY))
    ids = torch.zeros(0, 2, dtype=torch.int64, device=DEVICE)
    found, _ = log_probs_of_head([(hidden, weight)], ids, temperature=0.5, chunk=4, kernel="triton")
    gradients = torch.autograd.grad(found.sum(), [hidden, weight])
    assert gradients[0].shape == hidden.shape
    assert not gradients[1].any()


def test_gradients_that_are_not_contiguous_are_read_as_they_are() -> None:
    table, ids = logits(4, 30, torch.float32).to(DEVICE), random_ids(4, 3, 30).to(DEVICE)
    of_ids = torch.randn(3, 4).to(DEVICE).T
    largest, total = table.amax(-1), (table - table.amax(-1, keepdim=True)).exp().sum(-1)
    found = []
    for gradients in (of_ids, of_ids.contiguous()):
        block = table.clone()
        walk_kernels.to_gradient(
            *(
                block,
                ids,
                table.gather(-1, ids),
                (largest, total),
                gradients,
                total,
                torch.ones(1, device=DEVICE).expand(4),
            ),
            **{"first": 0, "temperature": 1.0},
        )
        found.append(block)
    assert torch.equal(*found)


@pytest.mark.skipif(DEVICE.type != "cpu", reason="its ranks have tensors of the CPU")
def test_two_ranks_share_the_vocabulary() -> None:
    on_ranks(2, check_head_of_kernel, find_available_port(), "triton")
