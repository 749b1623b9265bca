"""Ray for real: eight logical GPUs are 4/2/2, and nothing is left of the cluster, whatever ends the driver."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from groundwork.janitor import start_time
from lab.testkit.live_run import wait_until

pytestmark = pytest.mark.timeout(600)

GONE_SECONDS = 120.0
DRIVER = """
import json, os, sys, time
from slime.args import Arguments
import ray
from dataclasses import replace
from slime.exceptions import EngineNodeLostError
from slime.ray.cluster import ray_cluster
from slime.ray.engine_group import EngineGroup
from slime.ray.placement import create_placement
from groundwork.janitor import start_time

args = Arguments(device="cpu", num_nodes=1, ray_address=None, node_timeout=60.0, run_dir=sys.argv[1],
                 debug_rollout_only=False, debug_train_only=False, colocate=False,
                 actor_num_nodes=1, actor_num_gpus_per_node=4, rollout_num_gpus=2, rollout_num_gpus_per_engine=2,
                 prm_enable=True, prm_num_gpus=2, prm_num_gpus_per_engine=2, num_gpus=8,
                 num_gpus_per_node=1, sglang_router_port=None)

@ray.remote
class Member:
    def gpu(self):
        return int(ray.get_gpu_ids()[0])

def answers_of_an_engine_on_two_machines(reserved):
    # Where its actors are, and what is said when that on the second machine is gone; each GPU counts as a machine of its own.
    bundles = tuple(replace(bundle, node_id=str(bundle.gpu_id)) for bundle in reserved.bundles)
    group = EngineGroup(args, replace(reserved, bundles=bundles), "policy")
    engine = group._create(0)
    said = [len(ray.get(engine.hosts(), timeout=300))]
    ray.kill(group._others[0][0].actor)
    while len(said) < 2:  # until the actor is gone, it may still answer
        try:
            ray.get(engine.hosts(), timeout=300)
        except EngineNodeLostError as error:
            said.append(str(error))
    group.handles = [engine]
    group.stop()
    return said

with ray_cluster(args, num_gpus=8):
    reserved = create_placement(args)
    placement = reserved.placement
    members = {
        role: [Member.options(**reserved.options(gpu, 0.2)).remote() for gpu in gpus]
        for role, gpus in (("actor", placement.actor), ("rollout", placement.rollout), ("judge", placement.judge))
    }
    gpus = {role: ray.get([member.gpu.remote() for member in group]) for role, group in members.items()}
    engine = answers_of_an_engine_on_two_machines(reserved) if sys.argv[2] == "end" else []
    import psutil
    folder = os.path.dirname(ray._private.worker._global_node.get_session_dir_path())
    children = [child.pid for child in psutil.Process().children(recursive=True)]
    processes = [[pid, start_time(pid)] for pid in children if start_time(pid)]
    print(json.dumps({"gpus": gpus, "engine": engine, "folder": folder, "processes": processes}), flush=True)
    if sys.argv[2] == "wait":
        time.sleep(600)
"""


@contextmanager
def driver_of(repository: Path, run_dir: Path, mode: str) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The driver once it has told its facts; it does not outlive the block."""
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(run_dir), mode],
        env={**os.environ, "PYTHONPATH": str(repository / "slime")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    try:
        told = next((line for line in driver.stdout if line.startswith("{")), None)
        assert told is not None, f"the driver ended with {driver.wait()}"
        yield driver, json.loads(told)
    finally:
        driver.kill()
        driver.wait()
        driver.stdout.close()


def wait_until_gone(facts: dict[str, Any]) -> None:
    def left() -> list[Any]:
        processes = [pid for pid, started in facts["processes"] if start_time(pid) == started]
        return [*processes, *filter(os.path.exists, [facts["folder"]])]

    wait_until(lambda: not left(), lambda: f"still there: {left()}", GONE_SECONDS)


def test_roles_get_their_gpus_and_a_normal_end_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    home_token = Path.home() / ".ray" / "auth_token"
    had_token = home_token.exists()
    with driver_of(repository, tmp_path, "end") as (driver, facts):
        assert facts["gpus"] == {"actor": [0, 1, 2, 3], "rollout": [4, 5], "judge": [6, 7]}
        places, lost = facts["engine"]
        assert places == 2, "its actors know each other"
        assert "engine-policy-0: its process on machine 2 of 2 does not answer hosts" in lost
        assert driver.wait(GONE_SECONDS) == 0
    wait_until_gone(facts)
    assert home_token.exists() == had_token


@pytest.mark.long
def test_a_killed_driver_leaves_nothing(repository: Path, tmp_path: Path) -> None:
    with driver_of(repository, tmp_path, "wait") as (driver, facts):
        driver.kill()
        driver.wait()
        wait_until_gone(facts)
