"""What the tests of the command line share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers.checkpoints import config_only


@pytest.fixture
def base(tmp_path: Path) -> list[str]:
    """The shortest command line that is valid."""
    model = config_only(tmp_path / "model")
    words = f"--hf-checkpoint {model} --rollout-batch-size 16 --num-rollout 2 --device cpu --run-dir {tmp_path / 'run'}"
    return words.split()
