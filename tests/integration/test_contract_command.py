"""The contract tests on a plugin of the user's, as the instructions say to run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path


def test_pytest_on_a_named_plugin(repository: Path) -> None:
    command = [sys.executable, "-m", "pytest", "tests/contract/plugins/test_training.py", "-q", "-p", "no:xdist"]
    environment = {
        **os.environ,
        "SLIME_CONTRACT_CUSTOM_TIS_FUNCTION_PATH": "slime.algorithms.losses.rejection.icepop_function",
    }
    option = ["--plugin-custom-megatron-init-path", "tests.helpers.bad_plugins.calls.megatron_init_1"]
    result = subprocess.run(
        [*command, *option], cwd=repository, env=environment, capture_output=True, text=True, check=False
    )
    assert "clause megatron_init-1: the plugin is called as fn(args)" in result.stdout
    assert "1 failed, 1 passed, 6 skipped" in result.stdout
