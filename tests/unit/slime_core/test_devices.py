"""CUDA that cannot work is refused before anything starts, with the driver's version and what to type."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from groundwork import machine
from groundwork.exceptions import ConfigError
from groundwork.machine import CudaFacts
from openclaw.launch import __main__ as launch
from openclaw.launch import machine as launch_machine
from slime.args import Arguments
from slime.arguments import cluster as devices
from slime.arguments import parse_args
from slime.arguments import validate as derive
from slime.arguments.cluster import device_problems, gpus_of_machine, missing_devices, missing_tools
from slime.arguments.dry_run import missing_at_start
from slime.ray import run as run_module
from slime.ray import worker_node
from slime.ray.run import Run

WORKS = CudaFacts("2.14.1", "13.0", "580.65.06", 13000, 0, None, 8)
OLD = replace(WORKS, driver="570.86.15", supports=12080)


def test_the_ranks_of_a_gpu_node_are_not_started_on_a_few_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_a_cpu(*words: str, cores: int = 2) -> list[str]:
        monkeypatch.setattr(devices, "usable_cores", lambda: cores)
        given = f"--hf-checkpoint {tmp_path} --rollout-batch-size 4 --num-rollout 1 --device cpu"
        return missing_devices(parse_args([*given.split(), "--disable-rollout-global-dataset", *words]))

    assert on_a_cpu() == [
        "--actor-num-gpus-per-node 8, the default, is for GPUs: this CPU has 2 cores; use --actor-num-gpus-per-node 1"
    ]
    assert on_a_cpu(cores=8) == []
    assert on_a_cpu("--actor-num-gpus-per-node", "4") == []
    assert on_a_cpu("--debug-rollout-only") == []


def args(**changes: Any) -> Arguments:
    values = {"device": "cuda", "num_nodes": 1, "num_gpus": 8, "rollout_num_gpus": 2, "ray_address": None}
    return Arguments(**(values | changes))


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (WORKS, None),
        (replace(WORKS, supports=13020), None),
        (replace(WORKS, built_for="12.8", supports=12020, driver="535.104.05"), None),  # minor versions are compatible
        (replace(OLD, supports=13000), None),  # cuda-compat brings a newer library than the driver's
        (OLD, "NVIDIA driver 570.86.15 supports CUDA 12.8 at most, and torch 2.14.1 is built for CUDA 13.0: install driver 580"),
        (replace(WORKS, torch=None, built_for=None), "torch is not installed; run scripts/setup.sh gpu"),
        (replace(WORKS, torch="2.13.0+cpu", built_for=None), "torch 2.13.0+cpu is built without CUDA; run scripts/setup.sh gpu"),
        (
            replace(WORKS, driver=None, supports=0, error="libcuda.so.1: no such file", devices=0),
            "no NVIDIA driver works here (libcuda.so.1: no such file), and torch 2.14.1 is built for CUDA 13.0: install "
            "driver 580 or newer; run scripts/setup.sh doctor",
        ),
        (replace(WORKS, code=802, error="system not yet initialized", devices=0), "start nvidia-fabricmanager"),
        (replace(WORKS, code=100, error="no CUDA-capable device", devices=0), "correct CUDA_VISIBLE_DEVICES"),
        (replace(WORKS, code=999, error="unknown error", devices=0), "error 999); run scripts/setup.sh doctor"),
        (replace(WORKS, devices=4), "the run needs 8 GPUs on this machine but CUDA sees 4 (CUDA_VISIBLE_DEVICES=0,1,2,3)"),
    ],
)  # fmt: skip
def test_what_speaks_against_cuda(facts: CudaFacts, says: str | None) -> None:
    problems = device_problems(facts, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, needed=8)
    assert len(problems) == (says is not None)
    assert not says or says in problems[0]


def test_names_of_gpus() -> None:
    for names in ("GPU-8932f937-d72c,GPU-1", "0,1", ""):
        assert device_problems(WORKS, {"CUDA_VISIBLE_DEVICES": names}, needed=2) == []
    (problem,) = device_problems(WORKS, {"CUDA_VISIBLE_DEVICES": "MIG-c7384736-a75d"}, needed=1)
    assert "MIG-c7384736-a75d, a MIG partition" in problem
    assert "use whole GPUs: CUDA_VISIBLE_DEVICES=0,1 or CUDA_VISIBLE_DEVICES=GPU-..." in problem


@pytest.mark.parametrize(
    ("names", "gpus"),
    [(None, 4), ("", 0), ("-1", 0), ("2", 1), ("0,1,-1,2", 2), ("GPU-1,GPU-2,GPU-3", 3), ("0,1,2,3,4,5", 4)],
)
def test_gpus_that_the_shell_hides_do_not_count(names: str | None, gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(derive, "visible_gpus", lambda: 4)
    assert derive.usable_gpus({} if names is None else {"CUDA_VISIBLE_DEVICES": names}) == gpus


def test_a_machine_brings_the_gpus_of_the_run() -> None:
    assert gpus_of_machine(args(num_gpus=3)) == 3
    assert gpus_of_machine(args(num_gpus=None, actor_num_gpus_per_node=4, prm_num_gpus=0)) == 6
    assert gpus_of_machine(args(num_nodes=2, num_gpus_per_node=8, num_gpus=None)) == 8
    assert gpus_of_machine(args(num_gpus=None, share_gpu=True)) == 1


def program(folder: Path, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_text("#!/bin/sh\n")
    file.chmod(0o755)


def test_engines_need_the_compilers_that_sglang_calls(tmp_path: Path) -> None:
    toolkit, tools = tmp_path / "cuda", tmp_path / "tools"
    shell = {"PATH": str(tools), "CUDA_HOME": str(toolkit)}
    nvcc, ninja, compiler = missing_tools(shell)
    assert f"{toolkit}/bin/nvcc: no such program; install the CUDA toolkit, or set CUDA_HOME" in nvcc
    assert "ninja is not on PATH; run scripts/setup.sh gpu" in ninja
    assert "c++: no such C++ compiler; install g++, or set CXX" in compiler
    for name in ("ninja", "c++", "clang++"):
        program(tools, name)
    program(toolkit / "bin", "nvcc")
    assert missing_tools(shell) == []
    assert missing_tools({"PATH": f"{tools}:{toolkit / 'bin'}", "CXX": "clang++"}) == []
    assert "icpx: no such C++ compiler" in missing_tools(shell | {"CXX": "icpx"})[0]
    assert "/elsewhere/bin/nvcc" in missing_tools({"PATH": f"{tools}:{toolkit / 'bin'}", "CUDA_PATH": "/elsewhere"})[0]


def test_a_machine_is_asked_only_when_the_run_uses_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cuda_facts", lambda environment: OLD)
    monkeypatch.setattr(devices, "missing_tools", lambda environment: ["no nvcc"])
    assert "570.86.15" in missing_devices(args())[0]
    assert (
        missing_devices(args(device="cpu", actor_num_gpus_per_node=1))
        == missing_devices(args(ray_address="10.0.0.1:6379"))
        == []
    )
    monkeypatch.setattr(devices, "cuda_facts", lambda environment: WORKS)
    assert missing_devices(args()) == missing_devices(args(debug_rollout_only=True)) == ["no nvcc"]
    assert missing_devices(args(debug_train_only=True)) == []
    assert missing_devices(args(sglang_router_ip="10.0.0.1", prm_num_gpus=0)) == []


def test_no_program_starts_anything_on_a_machine_without_cuda(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], base_cuda: list[str]
) -> None:
    monkeypatch.setattr(devices, "cuda_facts", lambda environment: OLD)
    monkeypatch.setattr(run_module, "ray_cluster", lambda *_, **__: pytest.fail("Ray was started"))
    given = args(rollout_global_dataset=False)
    assert len(missing_at_start(given)) == 1
    with pytest.raises(ConfigError, match=r"driver 570\.86\.15 supports CUDA 12\.8 at most"):
        Run(given)._start()
    with pytest.raises(SystemExit) as ended:
        parse_args([*base_cuda, "--dry-run"])
    assert ended.value.code == 0, "the plan may be for another machine"
    said = capsys.readouterr().out
    assert "warning: this machine cannot run it: NVIDIA driver 570.86.15" in said
    assert "variable NCCL_CUMEM_ENABLE            0 " in said

    monkeypatch.setattr(launch_machine, "visible_gpus", lambda: 8)
    monkeypatch.setattr(launch_machine, "usable_gpus", lambda environment: 8)
    monkeypatch.setattr(os, "execve", lambda *_: pytest.fail("a run was started"))
    with pytest.raises(SystemExit) as ended:
        launch.main(["--method", "combine", "--model", "qwen3-4B"])
    assert ended.value.code == 2
    assert "launch: NVIDIA driver 570.86.15 supports CUDA 12.8 at most" in capsys.readouterr().err

    monkeypatch.setattr(worker_node, "cuda_facts", lambda: OLD)
    monkeypatch.setattr(worker_node, "check_token", lambda environment: None)
    assert worker_node.main(["--head-address", "127.0.0.1:1", "--num-gpus", "8", "--timeout", "0"]) == 1
    assert "this machine cannot join: NVIDIA driver 570.86.15" in capsys.readouterr().out


@pytest.fixture
def base_cuda(base: list[str]) -> list[str]:
    words = ["--device", "cuda", "--actor-num-gpus-per-node", "1", "--rollout-max-response-len", "8"]
    return [*base, *words, "--disable-rollout-global-dataset"]


def test_facts_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert machine.torch_build() == (torch.__version__, torch.version.cuda)
    monkeypatch.setattr(machine, "_DRIVER_LIBRARY", "libno-such-driver.so.1")
    facts = machine.cuda_facts()
    assert (facts.supports, facts.code, facts.devices) == (0, 0, 0)
    assert facts.error is not None
    assert "libno-such-driver.so.1" in facts.error
    monkeypatch.setattr(machine, "_PROBE", "import os\nos._exit(7)  # %s")
    crashed = machine.cuda_facts().error
    assert crashed is not None
    assert "status 7" in crashed
    module = tmp_path / "version"
    module.write_text(
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build\nGCC version: 13.2.0\n"
    )
    monkeypatch.setattr(machine, "_KERNEL_MODULE", module)
    assert machine.driver_version() == "580.65.06"


def test_cores_are_bounded_by_the_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda process: set(range(16)))
    quota = tmp_path / "cpu.max"
    monkeypatch.setattr(machine, "_QUOTA", quota)
    for text, cores in ((None, 16), ("max 100000", 16), ("350000 100000", 4), ("50000 100000", 1)):
        if text is not None:
            quota.write_text(text)
        assert machine.usable_cores() == cores


@pytest.mark.parametrize(("limit", "expected"), [("max", None), (str(512 * 2**20), 512), (str(2**62), None)])
def test_memory_is_that_of_the_container(
    limit: str, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    (tmp_path / "memory.max").write_text(f"{limit}\n")
    monkeypatch.setattr(machine, "_MEMORY_LIMITS", (tmp_path / "memory.max", tmp_path / "missing"))
    assert machine.usable_memory_mib() == (expected or whole)
