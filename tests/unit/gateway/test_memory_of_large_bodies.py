"""The memory of a gateway comes back after large requests."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

MAX_KEPT_BYTES = 100 << 20


def test_memory_comes_back_after_bodies_of_30_mb() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.helpers.resident_memory", "8"], capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    assert found["statuses"] == [400, 200] * 4
    assert found["after"] - found["before"] < MAX_KEPT_BYTES
