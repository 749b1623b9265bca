"""The tracker for Trackio on the real library."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

from tests.helpers.node import REPOSITORY, installed_by

TRACKIO = REPOSITORY / ".cache" / "trackio" / "lib"


def test_trackio_keeps_what_it_is_told_and_goes_on(tmp_path: Path) -> None:
    """On the real library, in a process of its own, because it reads its folder when it is imported."""
    installed_by("scripts/setup_trackio.sh")
    program = """
import sys
from slime.args import Arguments
from slime.tracking.trackers import Trackio
tracker = Trackio(Arguments.of({"run_dir": sys.argv[1]}))
tracker.log({"train/step": int(sys.argv[2]), "train/loss": 0.5}, "train/step")
tracker.finish()
"""
    environment = {
        **os.environ,
        "TRACKIO_DIR": str(tmp_path / "trackio"),
        "PYTHONPATH": os.pathsep.join([*sys.path, str(TRACKIO)]),
    }
    for step in (3, 4):
        command = [sys.executable, "-c", program, str(tmp_path / "mine"), str(step)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    with closing(sqlite3.connect(tmp_path / "trackio" / "openclaw_rl.db")) as file:
        rows = file.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    assert [(name, step, json.loads(metrics)["train/loss"]) for name, step, metrics in rows] == [
        ("mine", 3, 0.5),
        ("mine", 4, 0.5),
    ]
