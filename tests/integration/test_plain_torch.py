"""With torch, transformers and pytest alone the engine-free part of the GPU's figures is measured, and `tests/gpu` runs by itself."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.helpers.plain_python import ABSENT, plain_environment, plain_python


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory, repository: Path) -> Path:
    """The interpreter; fails when it sees what it must not."""
    found = plain_python(tmp_path_factory.mktemp("plain") / "env")
    look = f"import importlib.util as u, torch; print([n for n in {ABSENT!r} if u.find_spec(n)])"
    assert run(found, repository, "-c", look).stdout.strip() == "[]"
    return found


def run(python: Path, repository: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = plain_environment(repository)
    return subprocess.run(
        [str(python), *words], cwd=repository, env=environment, capture_output=True, text=True, timeout=800, check=False
    )


def test_the_folder_of_gpu_tests_runs_by_itself(python: Path, repository: Path) -> None:
    """No option of pytest asks for a plugin, and no file imports what is not there; without a GPU every test says why not."""
    found = run(python, repository, "-m", "pytest", "tests/gpu", "-q", "-p", "no:cacheprovider")
    assert found.returncode == 0, found.stdout + found.stderr
    assert "error" not in found.stdout.lower()
    assert " skipped in " in found.stdout or " passed" in found.stdout


@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_engine_free_figures_are_measured(python: Path, repository: Path, tmp_path: Path) -> None:
    file, steps = tmp_path / "figures.json", ("trainer 4B, 32k tokens", "parity", "weight push", "engine tests")
    words = ("--device", "cpu", "--quick", "--minutes", "60", "--json", str(file), "--only", *steps)
    found = run(python, repository, "-m", "benchmarks.gpu", *words)
    assert found.returncode == 0, found.stdout + found.stderr
    results = json.loads(file.read_text())["steps"]
    assert {name: result["status"] for name, result in results.items()} == dict(
        zip(steps, ("ok", "ok", "ok", "skipped"), strict=True)
    )
    names = {figure["name"] for result in results.values() for figure in result["figures"]}
    assert {
        "parity/attention eager/error, mean",
        "trainer/tiny/top-K 50, checkpointing/long/arithmetic",
        "trainer/tiny/top-K 50, checkpointing/long/peak above the model",
        "weight push/shared memory/0.03 GB",
    } <= names
    assert all(f"{name}: " in found.stdout for name in names), "a figure is not a line of the output"
