"""The benchmark of environments runs: real pools, a kill, and a forecast."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.integration
@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap: bash scripts/setup_bubblewrap.sh")
def test_the_quick_run_measures_every_part(tmp_path: Path, repository: Path) -> None:
    file = tmp_path / "envs.json"
    words = ["--quick", "--simulate", "--soak", "0.05", "--soak-parallel", "2", "--json", str(file)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "benchmarks.envs", *words]
    subprocess.run(command, cwd=repository, check=True, timeout=840, env=environment)
    found = json.loads(file.read_text())
    for kind in ("Program", "Shell"):
        orphans = found["orphans"][kind]
        assert orphans["before"]["processes"] >= 3 * orphans["environments"]
        assert orphans["before"]["ledger_rows"] >= orphans["environments"]
        assert orphans["after"] == {"processes": 0, "control_groups": 0, "temporary_files": 0, "ledger_rows": 0}
    assert found["calls"]["call_ms"]["count"] == found["calls"]["calls"] == 10
    assert found["sandbox"]["start_ms"]["count"] == found["sandbox"]["call_ms"]["count"] == 3
    assert found["tokens"]["ratio"] > 3
    for kind in ("Trivial", "Program", "Shell"):
        rows = found["episodes"][kind]["parallel"]
        assert [row["environments"] for row in rows] == [1, 4]
        assert all(row["episodes_per_s"] > 0 and row["in_process"]["episodes_per_s"] > 0 for row in rows)
        checks, growth = found["forecast"][kind]["one_host"], found["forecast"][kind]["hosts"]
        assert [check["environments"] for check in checks] == [1, 4]
        assert [row["hosts"] for row in growth] == [1, 2, 4]
    soak = found["soak"]
    first, _, last = soak["at_rest"]
    assert soak["episodes"] > 0
    assert last["leases"] - first["leases"] >= 2 * soak["rounds"]
    assert set(last["traces"].values()) == {0}
    assert (soak["left"], soak["close_failures"], soak["met"]) == ({}, {}, True)
