"""The vocabulary walk on CUDA: its Triton kernels, its sum in float32, and the copies that bring it its ids."""

from __future__ import annotations

import importlib

import pytest
import torch

from slime.backends.trainer.micro_batch import build, to_device
from slime.logprobs import response_rows

pytest.importorskip("triton")
cases = importlib.import_module("tests.helpers.walk_kernel_cases")
globals().update({name: value for name, value in vars(cases).items() if name.startswith("test_")})


def test_a_bfloat16_product_is_added_unrounded() -> None:
    """Sixteen products into one sum are as near to float64 as float32's rounding, in place."""
    generator = torch.Generator().manual_seed(5)
    tables, weights = (torch.randn(16, *size, generator=generator).bfloat16().cuda() for size in ((48, 320), (320, 64)))
    total = torch.zeros(48, 64, device="cuda")
    before = total.data_ptr()
    for table, weight in zip(tables, weights, strict=True):
        response_rows._add_gradients(table, slice(0, 320), (table,), (weight,), [total], [None])
    right = (tables.double() @ weights.double()).sum(0)
    assert total.data_ptr() == before
    torch.testing.assert_close(total.double(), right, atol=1e-3, rtol=1e-5)


def test_a_micro_batch_arrives_as_it_was_packed() -> None:
    samples, responses = [[5, 6, 7], [8, 9, 10, 11]], [1, 3]
    for packed in (True, False):
        there, here = (build(samples, responses, packed=packed, device=torch.device(name)) for name in ("cuda", "cpu"))
        for name in ("input_ids", "rows", "targets", "token_rows"):
            assert torch.equal(getattr(there, name).cpu(), getattr(here, name)), name
    given = [torch.arange(5), torch.rand(3, 2), torch.tensor(True), torch.rand(0)]
    for one, other in zip(given, to_device(given, torch.device("cuda")), strict=True):
        assert other.is_cuda
        assert torch.equal(one, other.cpu())
