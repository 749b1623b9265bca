"""Kernels are compiled with the first ``ninja`` on the PATH, so launch scripts put the environment's programs there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.parametrize("call", ["launch --method combine", "program -m anything"])
def test_launch_scripts_find_the_programs_of_the_environment(repository: Path, tmp_path: Path, call: str) -> None:
    tools = tmp_path / ".venv" / "bin"
    for name, body in (("python", 'case "$1" in -c) ;; *) command -v ninja ;; esac'), ("ninja", "true")):
        tools.mkdir(parents=True, exist_ok=True)
        (tools / name).write_text(f"#!/bin/sh\n{body}\n")
        (tools / name).chmod(0o755)
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "launch.sh").write_text((repository / "scripts" / "launch.sh").read_text())
    (tmp_path / "run.sh").write_text(f'source "{tmp_path}/scripts/launch.sh"\n{call}\n')
    done = subprocess.run(
        ["bash", str(tmp_path / "run.sh")], env=dict(os.environ), capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(tools / "ninja")
