"""What tests on a GPU share: a process that can be made deterministic, and is so only within a test."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from slime.backends.trainer.determinism import DETERMINISTIC_ENVIRONMENT

os.environ.update(DETERMINISTIC_ENVIRONMENT)  # read with the first kernel of a process


@pytest.fixture(autouse=True)
def _kernels_of_any_kind() -> Iterator[None]:
    yield
    torch.use_deterministic_algorithms(False)
