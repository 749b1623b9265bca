"""What tests on a GPU share: their own configuration, a process that can be made deterministic, models.

Guarantee: imports torch, pytest and this repository only, so that the tests that need no engine run where nothing else is
installed; `pytest.ini` beside it keeps the files of `tests` above out of such a run.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from slime.arguments.process_environment import DETERMINISTIC_ENVIRONMENT
from tests.helpers.model_fixtures import tiny_random_model, tiny_random_tied_model

__all__ = ["tiny_random_model", "tiny_random_tied_model"]

HERE = Path(__file__).resolve().parent
os.environ.update(DETERMINISTIC_ENVIRONMENT)  # read with the first kernel of a process
for _name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ.setdefault(_name, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and skip them where CUDA sees no device."""
    for item in items:
        if HERE in Path(item.path).parents:
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.fixture(autouse=True)
def _kernels_of_any_kind() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return HERE.parent.parent


@pytest.fixture(scope="session")
def small_qwen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Qwen3-0.6B's shape with random bfloat16 weights, spread so that logits are far from uniform."""
    from lab.testkit.fork_server import in_own_process
    from tests.helpers.gpu_models import small_qwen

    return in_own_process(small_qwen, tmp_path_factory.mktemp("model") / "qwen3-0.6b")
