"""Two machines as the network sees them: two network namespaces that reach each other over a cable and nothing else."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lab.testkit.processes import assert_all_gone
from tests.helpers.driver import Driver

SCRIPT = Path(__file__).parents[1] / "helpers" / "two_namespaces.sh"
HEAD, OTHER = "10.77.0.1:6379", "10.77.0.2"
ENVIRONMENT = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0123456789abcdef" * 4, "GLOO_SOCKET_IFNAME": "cable"}
FLAGS = (
    *(
        "--debug-train-only",
        "--rollout-function-path",
        "tests.helpers.steady_rollout.generate",
        "--rollout-num-gpus",
        "0",
    ),
    *("--num-rollout", "1", "--actor-num-nodes", "2", "--num-gpus-per-node", "1"),
    *("--num-nodes", "2", "--head-address", HEAD),
)


def why_not() -> str | None:
    """Why namespaces cannot be joined here; None where they can."""
    if not shutil.which("unshare") or not shutil.which("ip"):
        return "unshare and ip are not installed"
    tried = subprocess.run(["unshare", "-rn", SCRIPT, "true", "true"], capture_output=True, text=True, timeout=120)
    return f"network namespaces are not permitted: {tried.stderr.strip()}" if tried.returncode else None


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_run_over_two_namespaces(
    repository: Path, tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if reason := why_not():
        pytest.skip(reason)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    run_dir = tmp_path / "run"
    other = [
        sys.executable,
        "-m",
        "slime.ray.worker_node",
        "--head-address",
        HEAD,
        "--num-gpus",
        "1",
        "--device",
        "cpu",
    ]
    printed = run_dir / "other.txt"
    command = f"exec {shlex.join([*other, '--log', str(run_dir / 'other-ray.log')])} > {shlex.quote(str(printed))} 2>&1"
    driver = Driver(
        *(repository, run_dir, tiny_random_model, *FLAGS),
        script="train.py",
        through=["unshare", "-rn", str(SCRIPT), command],
    )
    driver.wait_for("2 of 2 nodes")
    family = driver.family()
    status = driver.wait_end()
    said = driver.text()
    assert status == 0, said
    assert [line.split()[1] for line in driver.steps()] == ["0"]
    assert f"joined {HEAD} as {OTHER} with 1 GPUs" in printed.read_text()
    assert os.listdir(run_dir / "checkpoints")
    assert_all_gone(family)
