"""A fixture for tests whose trainers join a process group in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch.distributed as dist


@pytest.fixture(autouse=True)
def leave() -> Iterator[None]:
    """A test that fails leaves its group, so that others can show what they find."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()
