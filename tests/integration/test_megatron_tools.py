"""Hugging Face to Megatron's checkpoint and back gives the same bytes, for tied and untied models and biases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.helpers import tiny_models


@pytest.mark.parametrize("kind", ["tied", "qwen2"])
def test_there_and_back_is_exact(kind: str, tmp_path: Path, tiny_random_tied_model: Path, repository: Path) -> None:
    model = tiny_random_tied_model if kind == "tied" else tiny_models.qwen2(tmp_path / "qwen2")
    there = ["convert_hf_to_torch_dist.py", "--hf-checkpoint", str(model), "--save", str(tmp_path / "megatron")]
    back = ["convert_torch_dist_to_hf.py", "--input-dir", str(tmp_path / "megatron"), "--origin-hf-dir", str(model)]
    for words in (there, [*back, "--output-dir", str(tmp_path / "back")]):
        command = [sys.executable, str(repository / "slime" / "tools" / words[0]), *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        assert done.returncode == 0, done.stderr
    original, returned = load_file(model / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors")
    assert set(returned) == set(original)
    assert all(returned[name].equal(value) for name, value in original.items())
    refused = subprocess.run(
        [sys.executable, str(repository / "slime" / "tools" / there[0]), *there[1:]],
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert refused.returncode == 2
    assert "--force" in refused.stderr
