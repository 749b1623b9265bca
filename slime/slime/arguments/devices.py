"""Check that CUDA works on a machine, and that engines find the compilers that SGLang calls at run time.

Guarantees: :func:`device_problems` and :func:`missing_tools` are pure functions of facts. :func:`missing_devices` asks
this machine, in about a second, before anything starts.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from groundwork.machine import CudaFacts, cuda_facts, usable_cores, with_programs
from slime.args import Arguments
from slime.arguments.cluster import USUAL_RANKS
from slime.arguments.machines import gpus_needed

VISIBLE = "CUDA_VISIBLE_DEVICES"
OLDEST_DRIVER = {11: "450", 12: "525", 13: "580"}
"""The oldest driver that runs any build for a major version of CUDA (NVIDIA's minor version compatibility)."""
DOCTOR = "run scripts/setup.sh doctor to see what this machine supports"
_HINTS = {
    100: "no GPU is visible to this process; in a container start it with all GPUs, or correct CUDA_VISIBLE_DEVICES",
    802: "the GPUs use NVSwitch but the fabric manager is not running; start nvidia-fabricmanager of the driver's version",
    803: "the driver's kernel module and its library have different versions; reboot, or reload the module",
}
_CUDA_HOMES = ("CUDA_HOME", "CUDA_PATH")
_USUAL_HOME = "/usr/local/cuda"


def device_problems(facts: CudaFacts, environment: Mapping[str, str], needed: int) -> list[str]:
    """Return why a run with ``--device cuda`` cannot work, one line each.

    Args:
        facts: facts about the machine.
        environment: environment of the run on that machine.
        needed: GPUs that the run needs on that machine.
    """
    if problem := _mig_problem(environment):
        return [problem]
    if facts.torch is None:
        return ["torch is not installed; run scripts/setup.sh gpu"]
    if facts.built_for is None:
        return [f"torch {facts.torch} is built without CUDA; run scripts/setup.sh gpu, or add --device cpu"]
    major = int(facts.built_for.split(".")[0])
    built = f"torch {facts.torch} is built for CUDA {facts.built_for}"
    oldest = f"driver {OLDEST_DRIVER.get(major, 'of that version')} or newer"
    driver = f"NVIDIA driver {facts.driver}" if facts.driver else "no NVIDIA driver"
    if not facts.supports:
        return [f"{driver} works here ({facts.error}), and {built}: install {oldest}; {DOCTOR}"]
    if facts.supports // 1000 < major:
        runs = f"{facts.supports // 1000}.{facts.supports % 1000 // 10}"
        return [
            f"{driver} supports CUDA {runs} at most, and {built}: install {oldest}, or on a data-centre GPU the package "
            f"cuda-compat-{major}; {DOCTOR}"
        ]
    if facts.error:
        hint = _HINTS.get(facts.code, DOCTOR)
        return [f"CUDA does not start with {driver}: {facts.error} (error {facts.code}); {hint}"]
    if facts.devices < needed:
        limit = f" ({VISIBLE}={environment[VISIBLE]})" if VISIBLE in environment else ""
        return [
            f"the run needs {needed} GPUs on this machine but CUDA sees {facts.devices}{limit}; give the roles fewer GPUs"
        ]
    return []


def _mig_problem(environment: Mapping[str, str]) -> str | None:
    names = [name for name in environment.get(VISIBLE, "").split(",") if name.strip().startswith("MIG-")]
    if not names:
        return None
    return (
        f"{VISIBLE} names {names[0]}, a MIG partition, and NCCL cannot connect MIG partitions directly; "
        f"use whole GPUs: {VISIBLE}=0,1 or {VISIBLE}=GPU-... (nvidia-smi -L)"
    )


def missing_tools(environment: Mapping[str, str]) -> list[str]:
    """Return one line per missing compiler tool that SGLang calls at run time.

    SGLang compiles kernels such as rotary embedding and SwiGLU; without a compiler an engine dies at its first forward
    pass.

    Args:
        environment: environment of the engine.
    """
    path = environment.get("PATH")
    home = next((environment[name] for name in _CUDA_HOMES if environment.get(name)), None)
    found = shutil.which("nvcc", path=path)
    home = home or (str(Path(found).parent.parent) if found else _USUAL_HOME)
    problems = []
    if not os.access(Path(home, "bin", "nvcc"), os.X_OK):
        problems.append(f"{home}/bin/nvcc: no such program; install the CUDA toolkit, or set CUDA_HOME to its folder")
    if not shutil.which("ninja", path=path):
        problems.append("ninja is not on PATH; run scripts/setup.sh gpu, or pip install ninja")
    compiler = shlex.split(environment.get("CXX") or "c++")[0]  # CXX="ccache g++" is a command with words
    if not shutil.which(compiler, path=path):
        problems.append(f"{compiler}: no such C++ compiler; install g++, or set CXX")
    return [f"engines compile kernels when they start: {problem}" for problem in problems]


def gpus_of_machine(args: Arguments) -> int:
    """Return the number of GPUs per machine of the run's own cluster."""
    if args.num_nodes > 1:
        return args.num_gpus_per_node
    return args.num_gpus if args.num_gpus is not None else gpus_needed(args)


def starts_engines(args: Arguments) -> bool:
    """Return whether the run starts an engine itself."""
    policy = not (args.debug_train_only or args.sglang_router_ip or args.rollout_external_engine_addrs)
    return bool((policy and args.rollout_num_gpus) or (not args.debug_train_only and args.prm_num_gpus))


def _missing_cores(args: Arguments) -> list[str]:
    """Return a line if the usual number of ranks, which is one for GPUs, exceeds this machine's cores."""
    ranks, cores = args.actor_num_gpus_per_node, usable_cores()
    if args.debug_rollout_only or ranks != USUAL_RANKS or ranks <= cores:
        return []
    return [
        f"--actor-num-gpus-per-node {ranks}, the default, is for GPUs: this CPU has {cores} core{'s' * (cores != 1)}; "
        "use --actor-num-gpus-per-node 1"
    ]


def missing_devices(args: Arguments, environment: Mapping[str, str] | None = None) -> list[str]:
    """Return why this machine cannot host the run, one line each; machines of an existing cluster are checked later."""
    if args.ray_address:
        return []
    if args.device != "cuda":
        return _missing_cores(args) if args.device == "cpu" else []
    environment = os.environ if environment is None else environment
    problems = device_problems(cuda_facts(environment), environment, gpus_of_machine(args))
    if problems or not starts_engines(args):
        return problems
    return missing_tools({**environment, "PATH": with_programs(environment.get("PATH", os.defpath))})
