"""Hugging Face to Megatron's checkpoint and back gives the same bytes, for tied and untied models and biases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.helpers import tiny_models
from tests.helpers.tool_rank import run_tools

KINDS = ("tied", "qwen2")


@pytest.fixture(scope="module")
def converted(
    tmp_path_factory: pytest.TempPathFactory, tiny_random_tied_model: Path, repository: Path
) -> dict[str, tuple[Path, Path, list[str]]]:
    """By kind: the model, what came back, and the command that led there."""
    folder, tools = tmp_path_factory.mktemp("tools"), repository / "slime" / "tools"
    models = {"tied": tiny_random_tied_model, "qwen2": tiny_models.qwen2(folder / "qwen2")}
    commands, results = [], {}
    for kind in KINDS:
        middle, end = folder / f"{kind}-megatron", folder / f"{kind}-back"
        there = [tools / "convert_hf_to_torch_dist.py", "--hf-checkpoint", models[kind], "--save", middle]
        back = [tools / "convert_torch_dist_to_hf.py", "--input-dir", middle]
        back += ["--origin-hf-dir", models[kind], "--output-dir", end]
        commands += [[str(word) for word in words] for words in (there, back)]
        results[kind] = (models[kind], end, commands[-2])
    outcomes = run_tools(commands, folder / "outcomes.json")
    assert [status for status, _ in outcomes] == [0] * len(commands), outcomes
    return results


@pytest.mark.parametrize("kind", KINDS)
def test_there_and_back_is_exact(converted, kind: str) -> None:
    model, end, _ = converted[kind]
    original, returned = load_file(model / "model.safetensors"), load_file(end / "model.safetensors")
    assert set(returned) == set(original)
    assert all(returned[name].equal(value) for name, value in original.items())


def test_nothing_is_overwritten(converted) -> None:
    """As a command, which finds its modules by itself."""
    command = [sys.executable, *converted["tied"][2]]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert refused.returncode == 2
    assert "--force" in refused.stderr
