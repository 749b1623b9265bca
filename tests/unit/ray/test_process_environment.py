"""What ranks and engines start with: one value on both sides of a communicator, and settings that the run decides or leaves."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest

from slime.args import Arguments
from slime.arguments.placement import EngineSpec
from slime.arguments.process_environment import (
    ALLOCATOR,
    CUMEM,
    JOB_VARIABLE,
    MNNVL,
    NOSET,
    NVLS,
    SHARED,
    check_shared,
    environment_lines,
    rank_environment,
    without_expandable,
)
from slime.backends.sglang_utils.engine_process import process_environment
from slime.ray import cluster as cluster_module
from slime.utils.forwarded_environment import forwarded, of_node, own_of_machine

SPEC = EngineSpec("policy", 0, 1, (3,))


def arguments(**changes: Any) -> Arguments:
    values: dict[str, Any] = {
        **{"device": "cuda", "train_backend": "fsdp", "num_nodes": 1, "rollout_num_gpus": 2},
        **{"update_weight_mode": "full", "offload_rollout": False, "offload_train": False},
    }
    return Arguments(**(values | changes))


def rank(args: Arguments, environment: dict[str, str], **more: Any) -> dict[str, str]:
    return rank_environment(args, environment, rank=1, world_size=4, local_rank=1, **more)


def of_nccl(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.startswith("NCCL_")}


USERS = [
    {name: value for name, value in zip(SHARED, values, strict=True) if value is not None}
    for values in itertools.product((None, "0", "1"), repeat=3)
]
FLAGS: list[dict[str, Any]] = [
    {},
    {"sglang_enable_symm_mem": True},
    {"sglang_enable_nccl_nvls": True},
    {"sglang_enable_kv_cache_sharding": True},
    {"train_env_vars": {CUMEM: 1, NVLS: "1"}},
    {"rollout_num_gpus_per_engine": 16},
]


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "-".join(flags) or "none")
@pytest.mark.parametrize("other_machine", [False, True])
def test_ranks_and_engines_agree_on_nccl_whatever_the_user_sets(
    flags: dict[str, Any], other_machine: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    args = arguments(**flags, num_nodes=1 + other_machine)
    for user in USERS:
        driver = {"PATH": "/bin", "NCCL_DEBUG": "INFO", "NCCL_SOCKET_IFNAME": "eth0", **user}
        there = driver
        if other_machine:
            shell = {"PATH": "/bin", CUMEM: "1", NVLS: "1", "NCCL_SOCKET_IFNAME": "ib1", "NCCL_ALGO": "Ring"}
            monkeypatch.setattr(cluster_module.os, "environ", driver)
            there = of_node(shell) | cluster_module.of_run(args)
        of_rank = there | rank(args, driver)
        of_rank |= own_of_machine(of_rank)
        of_engine = process_environment(args, SPEC, there)
        assert of_nccl(of_rank) == of_nccl(of_engine)
        assert {CUMEM, NVLS} <= of_nccl(of_engine).keys(), "SGLang would choose, and the rank's NCCL too"
        if not flags:
            assert {name: of_rank[name] for name in user} == user, "the user's value wins"
        assert of_engine["NCCL_SOCKET_IFNAME"] == ("ib1" if other_machine else "eth0")


def test_defaults_are_those_of_the_engines_and_flags_of_theirs_count_for_ranks() -> None:
    assert of_nccl(rank(arguments(), {})) == {CUMEM: "0", NVLS: "0"}
    assert of_nccl(rank(arguments(sglang_enable_symm_mem=True), {})) == {CUMEM: "1", NVLS: "1"}
    assert of_nccl(rank(arguments(sglang_enable_nccl_nvls=True), {})) == {CUMEM: "0", NVLS: "1"}
    assert of_nccl(rank(arguments(sglang_enable_kv_cache_sharding=True), {})) == {CUMEM: "1", NVLS: "0"}
    several = arguments(rollout_num_gpus_per_engine=16)
    assert of_nccl(rank(several, {})) == {CUMEM: "0", NVLS: "0", MNNVL: "0"}
    assert of_nccl(rank(several, {CUMEM: "1"})) == {CUMEM: "1", NVLS: "0"}
    cpu = arguments(device="cpu")
    assert not of_nccl(rank(cpu, {}) | process_environment(cpu, SPEC, {}))


def test_a_value_that_an_engine_would_overwrite_is_refused() -> None:
    args = arguments(sglang_enable_symm_mem=True)
    (problem,) = check_shared(args, {CUMEM: "0"})
    assert problem == (
        f"{CUMEM}=0: --sglang-enable-symm-mem makes SGLang set it to 1; unset {CUMEM}, or remove --sglang-enable-symm-mem"
    )
    assert "--sglang-enable-nccl-nvls" in check_shared(arguments(sglang_enable_nccl_nvls=True), {NVLS: "0"})[0]
    assert check_shared(args, {CUMEM: "1", NVLS: "1"}) == []
    assert check_shared(arguments(), {CUMEM: "1"}) == []


def test_sglang_sets_no_other_variable_of_nccl() -> None:
    """What a newer SGLang sets by itself has to be looked at: does it matter to the communicator with the trainer?"""
    found = importlib.util.find_spec("sglang")
    assert found is not None
    assert found.origin is not None
    source = Path(found.origin).with_name("srt").joinpath("entrypoints", "engine.py").read_text()
    body = source[source.index("def _set_envs_and_config") :]
    body = body[: body.index("\ndef ", 1)]
    # NCCL_GRAPH_MIXING_SUPPORT is how a process launches its own kernels.
    assert set(re.findall(r'"(NCCL_\w+)"', body)) == {*SHARED, "NCCL_GRAPH_MIXING_SUPPORT"}


def test_ranks_have_expandable_segments_unless_somebody_says_otherwise() -> None:
    first, second = ALLOCATOR
    assert rank(arguments(), {})[first] == "expandable_segments:True"
    assert second not in rank(arguments(), {})
    for name in ALLOCATOR:
        own = rank(arguments(), {name: "max_split_size_mb:64"})
        assert (own[name], len(own.keys() & {*ALLOCATOR})) == ("max_split_size_mb:64", 1)
        assert rank(arguments(train_env_vars={name: "a:1"}), {name: "b:2"})[name] == "a:1"
    assert not rank(arguments(device="cpu"), {}).keys() & {*ALLOCATOR}


@pytest.mark.parametrize(
    ("changes", "expandable"),
    [
        ({"share_gpu": True, "update_weight_transport": "shared"}, False),
        ({"colocate": True, "rollout_num_gpus": 1, "update_weight_transport": "shared"}, False),
        ({"colocate": True, "rollout_num_gpus": 2, "update_weight_transport": "shared"}, True),  # pinned host memory
        ({"share_gpu": True, "update_weight_transport": "nccl"}, True),  # gloo
        ({"update_weight_transport": "shared"}, True),
    ],
)
def test_ranks_that_send_ipc_handles_have_no_expandable_segments(changes: dict[str, Any], expandable: bool) -> None:
    args = arguments(**changes)
    assert (ALLOCATOR[0] in rank(args, {})) == expandable
    (line,) = [line for line in environment_lines(args, {}) if line.startswith(ALLOCATOR[0])]
    assert ("CUDA IPC handles" in line) != expandable


def test_an_engine_with_a_memory_saver_has_no_expandable_segments() -> None:
    shell = {ALLOCATOR[0]: "expandable_segments:True,max_split_size_mb:64", ALLOCATOR[1]: "expandable_segments:True"}
    assert process_environment(arguments(), SPEC, shell)[ALLOCATOR[0]] == shell[ALLOCATOR[0]]
    saver = process_environment(arguments(offload_rollout=True), SPEC, shell)
    assert (saver[ALLOCATOR[0]], saver[ALLOCATOR[1]]) == ("max_split_size_mb:64", "")
    assert without_expandable("a:1, expandable_segments:True,b:[64:8,256:4]") == "a:1,b:[64:8,256:4]"


def test_threads_of_an_optimizer_on_the_cpu() -> None:
    offload = arguments(fsdp_cpu_offload=True)
    assert rank(offload, {}, cores=64, ranks=4)["OMP_NUM_THREADS"] == "16"
    assert rank(offload, {}, cores=2, ranks=4)["OMP_NUM_THREADS"] == "1"
    assert rank(offload, {"OMP_NUM_THREADS": "3"}, cores=64, ranks=4)["OMP_NUM_THREADS"] == "3"
    megatron = arguments(train_backend="megatron", optimizer_cpu_offload=True)
    assert rank(megatron, {}, cores=64, ranks=8)["OMP_NUM_THREADS"] == "8"
    assert "OMP_NUM_THREADS" not in rank(arguments(), {}, cores=64, ranks=4)
    assert rank(arguments(device="cpu"), {"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "1"


def test_the_one_thread_that_ray_gives_the_driver_of_a_job_is_no_users(monkeypatch: pytest.MonkeyPatch) -> None:
    offload = arguments(fsdp_cpu_offload=True)
    of_ray = {"OMP_NUM_THREADS": "1", JOB_VARIABLE: json.dumps({"runtime_env": {"env_vars": {"HF_HOME": "/a"}}})}
    assert rank(offload, of_ray, cores=64, ranks=4)["OMP_NUM_THREADS"] == "16"
    monkeypatch.setattr(cluster_module.os, "environ", of_ray)
    assert "OMP_NUM_THREADS" not in cluster_module.of_run(offload)
    of_user = of_ray | {JOB_VARIABLE: json.dumps({"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "1"}}})}
    assert rank(offload, of_user, cores=64, ranks=4)["OMP_NUM_THREADS"] == "1"
    assert rank(offload, of_ray | {JOB_VARIABLE: '{"runtime_env": null}'}, cores=8, ranks=1)["OMP_NUM_THREADS"] == "8"


def test_tensor_parallel_ranks_of_megatron_have_one_queue() -> None:
    split = arguments(train_backend="megatron", tensor_model_parallel_size=2)
    assert rank(split, {})["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"
    assert rank(split, {"CUDA_DEVICE_MAX_CONNECTIONS": "8"})["CUDA_DEVICE_MAX_CONNECTIONS"] == "8"
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in rank(arguments(train_backend="megatron"), {})
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in rank(arguments(), {})


def test_a_rank_sees_its_own_gpu_whatever_the_clusters_setting() -> None:
    assert rank(arguments(), {NOSET: "1"})[NOSET] == "0"


def test_variables_of_communication_libraries_travel_and_secrets_do_not() -> None:
    travel = {
        **{name: "1" for name in ("NCCL_NET", "NCCL_IB_PKEY", "NCCL_TOPO_FILE", "TORCH_NCCL_ASYNC_ERROR_HANDLING")},
        **{
            name: "1"
            for name in ("FI_PROVIDER", "UCX_TLS", "GLOO_SOCKET_IFNAME", "OFI_NCCL_PROTOCOL", "RDMAV_FORK_SAFE")
        },
    }
    stay = {
        name: "1"
        for name in ("NCCL_TLS_KEY", "UCX_AUTH_TOKEN", "SGLANG_API_KEY", "SGLANG_HOST_IP", "FIXED", "MY_NCCL_")
    }
    assert forwarded(travel | stay) == travel
    assert travel.keys() <= of_node(travel | stay).keys()
    assert not stay.keys() & of_node(travel | stay).keys()


def test_a_machine_keeps_the_names_of_its_own_hardware() -> None:
    node = of_node({"NCCL_SOCKET_IFNAME": "ib1", "NCCL_DEBUG": "WARN"})
    of_worker = node | forwarded({"NCCL_SOCKET_IFNAME": "eth0", "NCCL_IB_HCA": "mlx5_0", "NCCL_DEBUG": "INFO"})
    own = own_of_machine(of_worker)
    assert own == {"NCCL_SOCKET_IFNAME": "ib1"}
    assert (of_worker | own)["NCCL_IB_HCA"] == "mlx5_0", "a machine that says nothing has the head's"
    assert (of_worker | own)["NCCL_DEBUG"] == "INFO"


def test_programs_beside_the_interpreter_are_found_by_engines() -> None:
    folders = process_environment(arguments(), SPEC, {"PATH": "/usr/bin"})["PATH"].split(":")
    assert folders[0] == "/usr/bin"
    assert Path(folders[-1], "python").exists()
    again = process_environment(arguments(), SPEC, {"PATH": ":".join(folders)})["PATH"]
    assert again.split(":") == folders
