"""The head of one machine listens on loopback, and no other user enters its folder; routers and engines likewise."""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray._private import ray_constants, services

from slime.args import Arguments
from slime.backends.sglang_utils import router
from slime.ray import cluster
from slime.ray.cluster import TOKEN_VARIABLE, reaches_other_machines
from slime.ray.ray_start import RAY_VARIABLES

VARIABLE = ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR
MAX_SOCKET = "/session_2026-11-27_00-00-00_000000_1234567/sockets/dash_RuntimeEnvAgent"
NOBODY = 65534


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a head is started with, and what it finds; it opens its folder to everybody, as Ray does."""
    found: dict[str, Any] = {}

    def init(**options: Any) -> None:
        folder = Path(options["_temp_dir"])
        folder.mkdir(mode=0o777, parents=True)
        folder.chmod(0o777)
        (folder / "log").write_text("a conversation")
        (folder / "log").chmod(0o644)
        found.update(options, address=services.get_node_ip_address(), variable=os.environ.get(VARIABLE), folder=folder)

    monkeypatch.delenv(VARIABLE, raising=False)
    for name in (TOKEN_VARIABLE, "RAY_USAGE_STATS_ENABLED", *RAY_VARIABLES):
        monkeypatch.setenv(name, "0")  # restored afterwards
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(cluster, "take_over", lambda run_dir: None)
    return found


def arguments(tmp_path: Path, *external: str) -> Arguments:
    addresses = list(external) or None
    return Arguments(run_dir=str(tmp_path), device="cpu", num_nodes=1, rollout_external_engine_addrs=addresses)


@pytest.mark.parametrize("given", [None, "1"])
def test_ray_has_the_loopback_address_and_nothing_stays_of_it(
    started: dict[str, Any], tmp_path: Path, given: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if given is not None:
        monkeypatch.setenv(VARIABLE, given)
    with cluster.ray_cluster(arguments(tmp_path), num_gpus=1):
        assert (started["address"], started["variable"]) == ("127.0.0.1", "0")
    assert (ray_constants.ENABLE_RAY_CLUSTER, os.environ.get(VARIABLE)) == (True, given)


@pytest.mark.parametrize(
    ("external", "elsewhere"),
    [
        ([], False),
        (["127.0.0.1:1", "localhost:2", "http://127.0.0.1:3"], False),
        (["127.0.0.1:1", "10.0.0.7:2"], True),
        (["http://gpu-7:2"], True),
    ],
)
def test_engines_on_other_machines_reach_the_trainer(
    started: dict[str, Any], tmp_path: Path, external: list[str], elsewhere: bool
) -> None:
    args = arguments(tmp_path, *external)
    assert reaches_other_machines(args) is elsewhere
    with cluster.ray_cluster(args, num_gpus=1):
        assert (started["variable"] is None) is elsewhere


def test_no_other_user_enters_the_folder_and_socket_paths_fit(started: dict[str, Any], tmp_path: Path) -> None:
    with cluster.ray_cluster(arguments(tmp_path), num_gpus=1):
        folder = started["folder"]
        assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
        assert len(f"/tmp/{folder.parent.name}/{folder.name}{MAX_SOCKET}") <= 107
        if os.geteuid() == 0 and shutil.which("setpriv"):
            as_nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
            for command in (["cat", str(folder / "log")], ["ls", str(folder)], ["touch", str(folder / "new")]):
                assert subprocess.run([*as_nobody, *command], capture_output=True).returncode != 0, command
        assert (folder / "log").read_text() == "a conversation"
    assert not folder.parent.exists()


def test_a_router_and_its_numbers_are_on_loopback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    commands: list[list[str]] = []
    monkeypatch.setattr(router, "spawn", lambda command, **_: commands.append(command) or SimpleNamespace())
    monkeypatch.setattr(router, "_wait_until_all_serve", lambda child, port, urls: None)
    args = Arguments(run_dir=str(tmp_path), router="auto", sglang_router_request_timeout_secs=None)
    address = router.serve_behind_one_address(args, "policy", ["http://127.0.0.1:1", "http://127.0.0.1:2"])
    (command,) = commands
    words = dict(itertools.pairwise(command))
    assert address.host == words["--host"] == words["--prometheus-host"] == "127.0.0.1"
