"""The loss benchmark runs, and every case agrees with its plain version."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_the_quick_run_compares_every_case(tmp_path: Path, repository: Path) -> None:
    file = tmp_path / "losses.json"
    command = [sys.executable, "-m", "benchmarks.losses", "--quick", "--json", str(file)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run(command, cwd=repository, check=True, capture_output=True, timeout=300, env=environment)
    cases = json.loads(file.read_text())["cases"]
    assert {"sft_loss", "gspo", "cispo", "top-K reverse KL", "top-K forward KL"} <= {case["case"] for case in cases}
    assert all(case["loss_difference"] < 1e-3 for case in cases)
    assert all(case["ours"]["microseconds_per_token"] > 0 for case in cases)
