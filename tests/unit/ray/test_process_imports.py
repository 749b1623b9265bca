"""A process imports what it needs: packages that take seconds stay out of the others, and an engine imports one model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from slime.backends.sglang_utils import served_model
from slime.backends.sglang_utils.served_model import ARCHITECTURES, PACKAGE, give, modules_that_define

HEAVY = ("torch", "transformers", "ray", "sglang", "openai", "megatron", "peft", "datasets", "pandas", "numpy", "mcp")
PROCESSES = {
    "launcher": ("openclaw.launch.__main__", ()),
    "driver": ("slime.ray.run", ("ray", "numpy")),
    "rollout manager": ("slime.ray.rollout", ("ray", "numpy")),
    "engine actor": ("slime.backends.sglang_utils.engine", ()),
    "training rank": ("slime.backends.fsdp_utils.backend", ("torch", "numpy")),
    "gateway": ("openclaw.runtime.serve", ()),
}
"""The module that a process begins with, and the heavy packages that it needs before it has read its arguments."""


@pytest.mark.parametrize(("module", "needs"), PROCESSES.values(), ids=PROCESSES)
def test_a_process_imports_no_heavy_package_that_it_does_not_need(
    repository: Path, module: str, needs: tuple[str, ...]
) -> None:
    program = f"import sys, {module}; print([name for name in {HEAVY!r} if name in sys.modules])"
    paths = os.pathsep.join(map(str, (repository, repository / "slime")))
    environment = {**os.environ, "PYTHONPATH": paths}
    result = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert json.loads(result.stdout.replace("'", '"')) == [name for name in HEAVY if name in needs]


# An engine's model


def checkpoint(folder: Path, text: str) -> list[str]:
    (folder / "config.json").write_text(text)
    return ["--device", "cpu", "--model-path", str(folder), "--port", "1"]


def test_the_engine_is_given_the_architectures_of_its_checkpoint(tmp_path: Path) -> None:
    environment: dict[str, str] = {}
    give(checkpoint(tmp_path, '{"architectures": ["Qwen3ForCausalLM", "Other"]}'), environment)
    assert environment == {PACKAGE: served_model.__name__, ARCHITECTURES: "Qwen3ForCausalLM,Other"}


def test_a_package_of_the_user_and_a_checkpoint_without_architectures_stay_with_sglang(tmp_path: Path) -> None:
    own = {PACKAGE: "my_models"}
    give(checkpoint(tmp_path, '{"architectures": ["Qwen3ForCausalLM"]}'), own)
    assert own == {PACKAGE: "my_models"}
    for words in (
        checkpoint(tmp_path, '{"architectures": null}'),
        checkpoint(tmp_path, "no JSON"),
        ["--model-path", "Qwen/Qwen3-4B"],
        ["--model-path"],
        [],
    ):
        environment: dict[str, str] = {}
        give(words, environment)
        assert environment == {}, words


def test_modules_are_found_by_the_class_that_they_define(tmp_path: Path) -> None:
    for name, text in {
        "qwen3": "import x\nclass Qwen3ForCausalLM(nn.Module):\n    pass\n",
        "qwen3_moe": "from qwen3 import Qwen3ForCausalLM\nclass Qwen3ForCausalLMMoe:\n    pass\n",
        "other": "class Other: ...\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    assert list(modules_that_define(["Qwen3ForCausalLM"], tmp_path)) == ["qwen3"]
    assert list(modules_that_define(["Other", "Qwen3ForCausalLM"], tmp_path)) == ["other", "qwen3"]
