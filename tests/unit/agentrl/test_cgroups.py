"""Where control groups are made, with either version, and what a server sweeps."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from agentrl.sandbox import cgroups
from agentrl.sandbox.cgroups import Places
from agentrl.sandbox.interface import Limits


class Machine:
    """A stand-in for the kernel's files."""

    def __init__(self, folder: Path) -> None:
        self.process, self.top = folder / "self", folder / "cgroup"
        self.process.mkdir()

    def group(self, path: str, handed: str | None = None) -> Path:
        folder = self.top / path
        folder.mkdir(parents=True, exist_ok=True)
        for each in [folder, *folder.parents]:
            if each == self.top.parent:
                break
            (each / "cgroup.procs").touch()
        if handed is not None:
            (folder / "cgroup.subtree_control").write_text(handed)
        return folder

    def find(self, mounts: list[str], groups: list[str]) -> Places:
        (self.process / "mountinfo").write_text("\n".join(mounts))
        (self.process / "cgroup").write_text("\n".join(groups))
        return cgroups.find(self.process)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_version_1_has_a_folder_for_each_controller(machine: Machine) -> None:
    memory, pids, cpu = machine.group("memory/own"), machine.group("pids"), machine.group("cpu/own")
    found = machine.find(
        [
            f"30 1 0:1 / {machine.top}/memory rw - cgroup cgroup rw,memory",
            f"31 1 0:2 / {machine.top}/pids rw shared:1 - cgroup cgroup rw,pids",
            f"32 1 0:3 /outer {machine.top}/cpu rw - cgroup cgroup rw,cpu,cpuacct",
            "33 1 0:4 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw",
        ],
        ["4:memory:/own", "3:pids:/", "2:cpu,cpuacct:/outer/own", "1:name=systemd:/", "0::/"],
    )
    assert found == Places(1, {"memory": memory, "pids": pids, "cpu": cpu})


@pytest.mark.parametrize("handing", ["scope", "above", "nobody"])
def test_version_2_takes_the_nearest_group_that_hands_on_its_bounds(machine: Machine, handing: str) -> None:
    machine.group("", "cpu memory pids" if handing == "above" else "cpuset")
    above = machine.group("user", "cpu memory pids" if handing != "nobody" else "cpu pids")
    own = machine.group("user/own", "memory pids" if handing == "scope" else "")
    found = machine.find([f"30 1 0:1 / {machine.top} rw - cgroup2 cgroup2 rw"], ["0::/user/own"])
    wanted = {
        "scope": Places(2, {"memory": own, "pids": own}),
        "above": Places(2, {"memory": above, "pids": above, "cpu": above}),
        "nobody": Places(1, {}),
    }
    assert found == wanted[handing]


def test_a_machine_without_control_groups_has_no_places(machine: Machine) -> None:
    assert machine.find(["30 1 0:1 / / rw - ext4 /dev/x rw"], ["0::/"]) == Places(1, {})


@pytest.mark.parametrize(
    ("version", "files"),
    [
        (1, {"memory.limit_in_bytes": "104857600", "pids.max": "20", "cpu.cfs_quota_us": "150000"}),
        (2, {"memory.max": "104857600", "pids.max": "20", "cpu.max": "150000 100000"}),
    ],
)
def test_a_group_has_the_bounds_of_its_limits(tmp_path: Path, version: int, files: dict[str, str]) -> None:
    places = Places(version, dict.fromkeys(cgroups.CONTROLLERS, tmp_path))
    group = cgroups.make(places, Limits(memory_mib=60, cpus=1.5, processes=20, disk_mib=40))
    (folder,) = group.folders
    assert {name: (folder / name).read_text() for name in files} == files


async def test_only_groups_of_dead_servers_are_swept(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").touch()
    space = os.stat("/proc/self/ns/pid").st_ino
    own = cgroups._own_prefix()
    pid, ticks = own.split("-")[2:]
    parent = cgroups.mark_of(os.getppid())
    assert parent is not None
    kept = [
        f"{own}-1",
        f"agentrl-{space}-{parent.pid}-{parent.ticks}-2",  # alive
        f"agentrl-{space + 1}-999999999-5-3",  # of another process namespace
        "agentrl-other",
        "user.slice",
    ]
    dead = [f"agentrl-{space}-{parent.pid}-{parent.ticks + 1}-4", f"agentrl-{space}-999999999-{ticks}-5"]
    for name in [*kept, *dead]:
        (tmp_path / "inner" / name).mkdir(parents=True)
    (tmp_path / "inner" / "cgroup.procs").touch()
    # In this version no file of the kernel is there, so a group without one counts as gone.
    for name in dead:
        (tmp_path / "inner" / name).rmdir()
    assert await cgroups.sweep(Places(2, {"memory": tmp_path / "inner"})) == 0
    assert sorted(each.name for each in (tmp_path / "inner").iterdir() if each.is_dir()) == sorted(kept)
    assert pid == str(os.getpid())
