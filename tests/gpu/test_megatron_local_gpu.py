"""Megatron's own layers (``--transformer-impl local``) on one GPU, without Transformer Engine, against the CPU's run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.figures import record_figure
from tests.helpers.megatron_outcome import CPU, check_same, outcome
from tests.helpers.needed import needs

pytestmark = needs("megatron")

LOCAL = CPU | {"device": "cuda", "transformer_impl": "local"}
TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2}


@pytest.fixture(scope="module")
def on_the_cpu(tiny_random_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return outcome(tiny_random_model, tmp_path_factory.mktemp("cpu"), 1, CPU)


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_two_rollouts_are_those_of_the_cpu(
    dtype: str, on_the_cpu: dict[str, Any], tiny_random_model: Path, tmp_path: Path
) -> None:
    found = outcome(tiny_random_model, tmp_path, 1, LOCAL | {"train_dtype": dtype})
    worst = check_same(found, on_the_cpu, TOLERANCES[dtype])
    record_figure(f"Megatron local/{dtype}/largest difference of a weight", worst, "1", limit=TOLERANCES[dtype])
