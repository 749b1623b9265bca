"""The loss benchmark runs, and every case agrees with its plain version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import losses
from lab.testkit.fork_server import in_own_process


@pytest.mark.long
def test_the_quick_run_compares_every_case(tmp_path: Path, repository: Path) -> None:
    file = tmp_path / "losses.json"
    command = [sys.executable, "-m", "benchmarks.losses", "--quick", "--json", str(file)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    printed = subprocess.run(
        command, cwd=repository, check=True, capture_output=True, text=True, timeout=300, env=environment
    ).stdout
    document = json.loads(file.read_text())
    cases, verdict = document["cases"], document["verdict"]
    assert json.loads(printed.splitlines()[-1]) == {"verdict": verdict}
    assert verdict["less_memory"]
    assert verdict["times_faster"] > 5  # the claim of 20 is for the full run: tensors are small here and machines busy
    assert {"sft_loss", "gspo", "cispo", "top-K reverse KL", "top-K forward KL"} <= {case["case"] for case in cases}
    assert all(case["loss_difference"] < 1e-3 for case in cases)
    assert all(case["ours"]["microseconds_per_token"] > 0 for case in cases)


def test_one_process_measures_several_cases_as_on_cuda() -> None:
    """The way that CUDA takes: what a case leaves behind must not reach the next one."""
    names = ["sft_loss", "top-K reverse KL"]
    options = SimpleNamespace(
        rows=32, vocabulary=512, width=16, chunk=8, top=5, repeats=1, device="cpu", dtype="float32"
    )
    found = in_own_process(losses.run_cases, names, options)
    assert list(found) == names
    for name, sides in found.items():
        assert losses.compare(name, options, sides)["loss_difference"] < 1e-3
