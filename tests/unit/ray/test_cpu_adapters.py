"""Adapters on a CPU engine: our products are SGLang's bit for bit, and SGLang asks for ours."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from slime.backends.sglang_utils.cpu_adapters import OPERATIONS, into_rank, out_of_rank
from slime.backends.sglang_utils.server import engine_environment

pytestmark = pytest.mark.slow

HIDDEN, RANK, ADAPTERS = 24, 4, 5
ROWS = ([1] * 6, [0, 3, 1, 0, 7, 2], [40])


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    """SGLang's operations alone; importing the package needs what a CPU lacks."""
    package = importlib.util.find_spec("sglang")
    assert package is not None
    assert package.origin is not None
    file = Path(package.origin).parent / "srt" / "lora" / "torch_ops" / "lora_ops.py"
    spec = importlib.util.spec_from_file_location("their_lora_ops", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("slices", [1, 3])
@pytest.mark.parametrize("with_base", [True, False])
def test_products_are_theirs_bit_for_bit(theirs: ModuleType, rows: list[int], slices: int, with_base: bool) -> None:
    """Also with runs of no row, an adapter of rank 0, which is the base, and one of a smaller rank."""
    torch.manual_seed(len(rows) + slices)
    ranks = torch.tensor([0, RANK, RANK, 2, RANK], dtype=torch.int32)
    scales = torch.tensor([0.0, 2.0, 0.3, 1.0, 1.7])
    lengths = torch.tensor(rows, dtype=torch.int32)
    places = torch.tensor([(3 * place) % ADAPTERS for place in range(len(rows))], dtype=torch.int32)
    offsets = torch.tensor([0, *torch.cumsum(torch.tensor([HIDDEN, 10, 10][:slices]), 0).tolist()])
    into, out = torch.randn(ADAPTERS, slices * RANK, HIDDEN), torch.randn(ADAPTERS, int(offsets[-1]), RANK)
    inputs = torch.randn(sum(rows), HIDDEN)
    expected = theirs.sgemm_lora_a_fwd(inputs, into, places, lengths, ranks, scales, slices)
    found = into_rank(theirs.sgemm_lora_a_fwd, inputs, into, places, lengths, ranks, scales, slices)
    assert torch.equal(found, expected)
    assert expected.any() or rows == [40]
    base = torch.randn(sum(rows), int(offsets[-1])) if with_base else None
    results = [
        function(*first, expected, out, places, lengths, ranks, offsets, None if base is None else base.clone())
        for function, first in ((theirs.sgemm_lora_b_fwd, ()), (out_of_rank, (theirs.sgemm_lora_b_fwd,)))
    ]
    assert torch.equal(*results)


def test_an_engine_without_adapters_gets_nothing_from_them(theirs: ModuleType) -> None:
    none = torch.empty(0, 0, HIDDEN)
    empty, inputs = torch.zeros(1, dtype=torch.int32), torch.randn(2, HIDDEN)
    rest = (none, empty, empty, empty, torch.zeros(1))
    assert into_rank(theirs.sgemm_lora_a_fwd, inputs, *rest).shape == theirs.sgemm_lora_a_fwd(inputs, *rest).shape


def test_sglang_multiplies_with_ours() -> None:
    """Its backend asks the functions of the package, so that those are replaced."""
    code = f"""
import torch, types
import {OPERATIONS} as theirs
from slime.backends.sglang_utils import cpu_adapters
calls = []
for name in ("into_rank", "out_of_rank"):
    setattr(cpu_adapters, name, lambda *rest, name=name: calls.append(name))
cpu_adapters.multiply_with_numbers()
some = torch.zeros(1, 1, dtype=torch.int32)
batch = types.SimpleNamespace(use_cuda_graph=False)
for name in ("weight_indices_cpu", "seg_lens_cpu", "lora_ranks_cpu", "scalings_cpu"):
    setattr(batch, name, some)
theirs.sgemm_lora_a_fwd(some, some, batch)
theirs.sgemm_lora_b_fwd(some, some, batch, some)
print(*calls)
"""
    environment = engine_environment(os.environ, cpu=True)
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout.split()) == (0, ["into_rank", "out_of_rank"]), found.stderr
