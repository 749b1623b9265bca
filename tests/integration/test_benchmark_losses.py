"""The loss benchmark runs, and every case agrees with its plain version."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path


def test_the_quick_run_compares_every_case(tmp_path: Path, repository: Path) -> None:
    file = tmp_path / "losses.json"
    command = [sys.executable, "-m", "benchmarks.losses", "--quick", "--json", str(file)]
    subprocess.run(command, cwd=repository, check=True, capture_output=True, timeout=300)
    cases = json.loads(file.read_text())["cases"]
    assert {"sft_loss", "gspo", "cispo", "top-50 reverse KL", "top-50 forward KL"} <= {case["case"] for case in cases}
    assert all(case["loss_difference"] < 1e-3 for case in cases)
    assert all(case["ours"]["microseconds_per_token"] > 0 for case in cases)
