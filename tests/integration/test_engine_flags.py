"""The record of engine flags is what the installed server has; reading them imports the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec

import pytest

from slime.arguments.sglang_flags import recorded_flags
from slime.backends.sglang_utils.server import CPU_STANDINS


def test_the_recorded_engine_flags_are_the_installed_ones() -> None:
    if find_spec("sglang") is None:
        pytest.skip("SGLang is not installed")
    command = (
        "import json; from slime.arguments.sglang_flags import installed_flags; print(json.dumps(installed_flags()))"
    )
    found = [] if find_spec("sgl_kernel") else [str(CPU_STANDINS)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([*found, *sys.path])}
    output = subprocess.run(
        [sys.executable, "-c", command], capture_output=True, text=True, check=True, env=environment
    ).stdout
    assert json.loads(output.splitlines()[-1])[1] == recorded_flags()
