"""A run that loses its processes to SIGKILL ends with the weights of one that loses none, and leaves nothing behind.

The run that is killed is on two machines: two Ray nodes with loopback addresses of their own. It loses a rank, the
rollout manager, and at the end the second machine, which comes back. The run that loses none is a job in a cluster that exists, and
so is one whose driver is killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from groundwork.network import find_available_port
from lab.testkit.live_run import wait_until
from lab.testkit.processes import assert_all_gone, title_of
from tests.helpers.driver import Driver
from tests.helpers.foreign_cluster import ForeignCluster, foreign_cluster
from tests.helpers.steady_rollout import hold_file

FLAGS = (
    *("--debug-train-only", "--rollout-function-path", "tests.helpers.steady_rollout.generate"),
    *("--rollout-num-gpus", "0", "--num-rollout", "6", "--save-interval", "2"),
)
HEAD, OTHER = "127.0.0.2", "127.0.0.3"
SECRETS = {"RAY_AUTH_TOKEN": "0123456789abcdef" * 4, "WANDB_API_KEY": "a key of the driver's shell"}
TUNED = {
    **{"RAY_AUTH_MODE": "token", "RAY_health_check_period_ms": "1000", "RAY_health_check_initial_delay_ms": "1000"},
    "GLOO_SOCKET_IFNAME": "lo",
}


TWO_MACHINES = ("--actor-num-nodes", "2", "--actor-num-gpus-per-node", "1")


def run(repository: Path, run_dir: Path, model: Path, *flags: str, through: Sequence[str] = ()) -> Driver:
    every = (*FLAGS, *TWO_MACHINES, *flags, "--save-hf", str(run_dir / "hf"))
    return Driver(repository, run_dir, model, *every, script="train.py", through=through)


def process(driver: Driver, title: str) -> psutil.Process:
    """The youngest process of the run whose title begins with ``title``, as Ray names its actors."""
    found = [one for one in driver.family() if title_of(one).startswith(title)]
    return max(found, key=lambda one: one.create_time())


@contextlib.contextmanager
def second_machine(repository: Path, folder: Path, head: str) -> Iterator[tuple[psutil.Process, Path]]:
    """A machine that joins ``head``; yields its process and what it prints."""
    output = folder / "second.txt"
    command = [sys.executable, "-m", "slime.ray.worker_node", "--head-address", head, "--num-gpus", "1"]
    command += ["--node-address", OTHER, "--device", "cpu", "--log", str(folder / "second-ray.log")]
    environment = {**os.environ, "PYTHONPATH": f"{repository / 'slime'}{os.pathsep}{repository}"}
    with output.open("wb") as log:
        child = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    try:
        yield psutil.Process(child.pid), output
    finally:
        if child.poll() is None:
            child.terminate()
        child.wait(60)


def environment_of(one: psutil.Process) -> dict[str, str]:
    try:
        return one.environ()
    except psutil.Error:
        return {}


def wait_until_no_actors(cluster: ForeignCluster) -> None:
    wait_until(lambda: not cluster.actors(), lambda: f"actors are left: {cluster.actors()}", 60)


def run_as_jobs(repository: Path, whole: Path, model: Path) -> None:
    """Run to the end in a cluster that exists, then be killed there; the cluster stays, without anything of the runs."""
    whole.mkdir()
    paths = f"{repository / 'slime'}{os.pathsep}{repository}"
    with foreign_cluster(whole) as cluster:
        through = cluster.submit({"PYTHONPATH": paths, "GLOO_SOCKET_IFNAME": "lo"})
        driver = run(repository, whole, model, through=through)
        assert driver.wait_end() == 0, driver.text()
        wait_until_no_actors(cluster)
        # All GPUs are free again, so another run finds them.
        driver = run(repository, whole / "killed", model, "--num-rollout", "1", "--serve-when-done", through=through)
        driver.wait_for("serving until")
        assert cluster.actors()
        cluster.driver().kill()
        assert driver.wait_end() != 0
        wait_until_no_actors(cluster)
        assert all(machine.is_running() for machine in cluster.machines)


@pytest.mark.long
@pytest.mark.timeout(900)
def test_kills_on_two_machines(
    repository: Path, tmp_path: Path, tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for name, value in {**SECRETS, **TUNED}.items():
        monkeypatch.setenv(name, value)
    run_as_jobs(repository, whole, tiny_random_model)

    killed.mkdir()
    for rollout_id in (3, 5):
        hold_file(killed, rollout_id).touch()
    head = f"{HEAD}:{find_available_port(host=HEAD)}"
    with second_machine(repository, tmp_path, head) as (machine, output):
        driver = run(
            *(repository, killed, tiny_random_model, "--num-nodes", "2", "--head-address", head),
            *("--num-gpus-per-node", "1", "--serve-when-done"),
        )
        driver.wait_for("2 of 2 nodes")
        driver.wait_for("step 2 ")
        there = machine.children(recursive=True)
        (rank,) = [one for one in there if title_of(one).startswith("ray::FSDPTrainActor")]
        ray_there = [one for one in there if "janitor.py" not in title_of(one)]
        assert not [one for one in ray_there if "WANDB_API_KEY" in environment_of(one)]
        rank.kill()
        hold_file(killed, 3).unlink()
        driver.wait_for("continuing at rollout 2")
        driver.wait_for("step 4 ")
        process(driver, "ray::RolloutManager").kill()
        hold_file(killed, 5).unlink()
        driver.wait_for("continuing at rollout 4")
        driver.wait_for("serving until")

        there = machine.children(recursive=True)
        next(one for one in there if Path(title_of(one).partition(" ")[0]).name == "raylet").kill()
        assert machine.wait(60) == 1
        assert "Ray ended on this machine" in output.read_text()
        driver.wait_for("for a machine to replace the lost one")
        assert_all_gone(there)
    with second_machine(repository, tmp_path, head) as (machine, output):
        driver.wait_for("continuing at rollout 6")
        driver.wait_until(lambda: driver.text().count("serving until") == 2, "the end of the rollouts")
        here, there = driver.family(), machine.children(recursive=True)
        driver.process.terminate()
        assert driver.wait_end() == 0, driver.text()
        assert machine.wait(60) == 0
        assert_all_gone([*here, *there])

    said = driver.text()
    assert f"node {OTHER} left the cluster. Continuing from the last checkpoint" in said
    assert "died in train" in said
    assert "the rollout manager died" in said
    assert [line.split()[1] for line in driver.steps()] == ["0", "1", "2", "2", "3", "4", "4", "5"]
    one, other, start = (
        load_file(folder / "model.safetensors") for folder in (whole / "hf", killed / "hf", tiny_random_model)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert not all(torch.equal(one[name], start[name]) for name in one)
