"""Ray for real: eight logical GPUs are 4/2/2, and nothing is left of the cluster, whatever ends the driver."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

DRIVER = """
import json, os, sys, time
from argparse import Namespace
import ray
from slime.ray.cluster import ray_cluster
from slime.ray.placement import create_placement

args = Namespace(device="cpu", num_nodes=1, ray_address=None, node_timeout=60.0, run_dir=sys.argv[1],
                 debug_rollout_only=False, debug_train_only=False, colocate=False,
                 actor_num_nodes=1, actor_num_gpus_per_node=4, rollout_num_gpus=2, rollout_num_gpus_per_engine=2,
                 prm_enable=True, prm_num_gpus=2, prm_num_gpus_per_engine=2, num_gpus=8)

@ray.remote
class Member:
    def gpu(self):
        return int(ray.get_gpu_ids()[0])

with ray_cluster(args, num_gpus=8):
    reserved = create_placement(args)
    placement = reserved.placement
    members = {
        role: [Member.options(**reserved.options(gpu, 0.2)).remote() for gpu in gpus]
        for role, gpus in (("actor", placement.actor), ("rollout", placement.rollout), ("judge", placement.judge))
    }
    gpus = {role: ray.get([member.gpu.remote() for member in group]) for role, group in members.items()}
    import psutil
    folder = os.path.dirname(ray._private.worker._global_node.get_session_dir_path())
    pids = [child.pid for child in psutil.Process().children(recursive=True)]
    print(json.dumps({"gpus": gpus, "folder": folder, "pids": pids}), flush=True)
    if sys.argv[2] == "wait":
        time.sleep(600)
"""


def run_driver(repository: Path, run_dir: Path, mode: str) -> tuple[subprocess.Popen[str], dict]:
    import json

    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(run_dir), mode],
        env={**os.environ, "PYTHONPATH": str(repository / "slime")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    for line in driver.stdout:
        if line.startswith("{"):
            return driver, json.loads(line)
    raise AssertionError(f"the driver ended with {driver.wait()}")


def gone(pids: list[int]) -> bool:
    from slime.utils.janitor import start_time

    return all(start_time(pid) is None for pid in pids)


def eventually(condition: Callable[[], bool], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return False


def test_roles_get_their_gpus_and_a_normal_end_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    home_token = Path.home() / ".ray" / "auth_token"
    had_token = home_token.exists()
    driver, facts = run_driver(repository, tmp_path, "end")
    assert facts["gpus"] == {"actor": [0, 1, 2, 3], "rollout": [4, 5], "judge": [6, 7]}
    assert driver.wait(60) == 0
    assert eventually(lambda: gone(facts["pids"]), 15)
    assert not Path(facts["folder"]).exists()
    assert home_token.exists() == had_token


def test_a_killed_driver_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    driver, facts = run_driver(repository, tmp_path, "wait")
    driver.kill()
    driver.wait()
    assert eventually(lambda: gone(facts["pids"]), 30)
    assert eventually(lambda: not Path(facts["folder"]).exists(), 10)
