"""Flags of cluster, machines and devices, with their checks: where a run starts, what it joins, and what is there."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from groundwork.machine import CudaFacts, cuda_facts, usable_cores, with_programs
from slime.args import Arguments
from slime.arguments.algorithm import critic_gpus
from slime.arguments.option import Group, Option, flag_of, json_object
from slime.arguments.placement import is_rented

ADDRESS_VARIABLE = "RAY_ADDRESS"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
MODE_VARIABLE = "RAY_AUTH_MODE"
OWN_CLUSTER = "local"
_NO_CLUSTER = {
    "ray://": "a Ray client address, whose program runs outside the cluster",
    "http": "a Ray dashboard address",
}


def gpus_needed(args: Arguments) -> int:
    """Total GPUs of all roles; shared GPUs count once."""
    if args.share_gpu:
        return 1
    trainer = 0 if args.debug_rollout_only else args.actor_num_nodes * args.actor_num_gpus_per_node + critic_gpus(args)
    engines = 0 if args.debug_train_only or args.rollout_external_engine_addrs else args.rollout_num_gpus
    judge = 0 if args.debug_train_only else args.prm_num_gpus
    return (max(trainer, engines) if args.colocate else trainer + engines) + judge


def check_given(args: Arguments) -> list[str]:
    """Return the problems, one line each; call it before `derive_machines` fills the flags."""
    problems = []
    several = args.num_nodes is not None and args.num_nodes > 1
    if args.num_nodes is not None and args.num_nodes < 1:
        problems.append(f"--num-nodes {args.num_nodes}: give 1 or more")
    host, _, port = (args.head_address or "").rpartition(":")
    if args.head_address and not (host and port.isdigit()):
        problems.append(f"--head-address {args.head_address}: write HOST:PORT, where other machines reach this one")
    address = _existing(args)
    if address is None:
        if several and not args.head_address:
            problems.append(
                f"--num-nodes {args.num_nodes} needs --head-address HOST:PORT, where other machines reach this one"
            )
        return problems
    source = "--ray-address" if args.ray_address else ADDRESS_VARIABLE
    given = (("--head-address", args.head_address), ("--num-nodes", args.num_nodes), ("--num-gpus", args.num_gpus))
    problems += [
        f"{flag} is for a cluster that the run starts, but {source} {address} names an existing one; remove it, or give "
        f"--ray-address {OWN_CLUSTER}"
        for flag, value in given
        if value is not None
    ]
    for start, what in _NO_CLUSTER.items():
        if address.startswith(start):
            problems.append(
                f"{source} {address} is {what}; use `ray job submit --address http://HOST:8265 -- python3 train.py ...`, "
                f"--ray-address HOST:6379 on a machine of the cluster, or --ray-address {OWN_CLUSTER} to start one"
            )
    return problems


def named_cluster(environment: Mapping[str, str]) -> str | None:
    """Return the Ray cluster address in ``RAY_ADDRESS``, or None."""
    address = environment.get(ADDRESS_VARIABLE)
    return None if address in (None, "", OWN_CLUSTER) else address


def missing_secret(environment: Mapping[str, str]) -> str | None:
    """Return what to type when the secret of a cluster of several machines is missing; None where it is there."""
    if environment.get(TOKEN_VARIABLE) and environment.get(MODE_VARIABLE) == "token":
        return None
    return (
        "several machines need a secret: make one with `openssl rand -hex 32`, and on all of them "
        f"export {MODE_VARIABLE}=token {TOKEN_VARIABLE}=SECRET"
    )


def _existing(args: Arguments) -> str | None:
    """Address of the cluster to join, or None; the command line wins over the variable."""
    if args.ray_address:
        return None if args.ray_address == OWN_CLUSTER else args.ray_address
    return None if args.head_address else named_cluster(os.environ)


def derive_machines(args: Arguments) -> None:
    """Fill in the cluster to join and the number of machines; an existing cluster keeps its number.

    With ``--num-gpus``, and on a CPU (logical GPUs), one machine has as many GPUs as needed.
    """
    args.ray_address = _existing(args)
    if args.num_nodes is None:
        trainer = 1 if args.debug_rollout_only else args.actor_num_nodes
        counted = args.device == "cuda" and args.num_gpus is None
        args.num_nodes = max(trainer, -(-gpus_needed(args) // args.num_gpus_per_node) if counted else 1)


def missing_machines(args: Arguments) -> str | None:
    """Return how to provide the missing machines, or None if none is missing."""
    if args.num_nodes == 1 or args.head_address or args.ray_address:
        return None
    return (
        f"the run needs {args.num_nodes} machines of {args.num_gpus_per_node} GPUs but is in no Ray cluster: submit it to one "
        "(`ray job submit`) or name it (--ray-address HOST:6379), or give --num-nodes and --head-address "
        "(instructions/cluster.md)"
    )


def check_machines(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = []
    if args.num_nodes == 1 and not args.ray_address:
        return [
            f"{flag} has no effect on one machine; remove it, or give --num-nodes 2 or more"
            for flag, given in (("--head-address", args.head_address), ("--forward-env", args.forward_env))
            if given
        ]
    if args.num_gpus not in (None, args.num_gpus_per_node) and not args.ray_address:
        problems.append(
            f"--num-gpus {args.num_gpus}: with several machines, each has --num-gpus-per-node {args.num_gpus_per_node}; "
            "remove --num-gpus"
        )
    if args.actor_num_nodes > args.num_nodes and not args.debug_rollout_only:
        problems.append(f"--actor-num-nodes {args.actor_num_nodes} is more than --num-nodes {args.num_nodes}")
    if args.num_nodes == 1:
        return problems
    if args.share_gpu or args.http_proxy:
        other = "--share-gpu" if args.share_gpu else "--http-proxy"
        problems.append(f"{other} is for one machine; remove it, or --num-nodes")
    for role, size in (("rollout", args.rollout_num_gpus_per_engine), ("prm", args.prm_num_gpus_per_engine)):
        if args.num_gpus_per_node % size and size % args.num_gpus_per_node:
            problems.append(
                f"--{role}-num-gpus-per-engine {size}: with several machines, an engine takes whole machines or a number that "
                f"divides --num-gpus-per-node {args.num_gpus_per_node}"
            )
    return problems


USUAL_RANKS = 8
"""Training ranks on a node unless a command line says otherwise: the GPUs of a usual node."""
CLUSTER = Group(
    "cluster and placement",
    (
        Option(
            "--device",
            "device of trainer and engines; auto takes CUDA if there is a GPU",
            str,
            "auto",
            ("auto", "cpu", "cuda"),
        ),
        Option(
            "--num-gpus", "logical GPUs of the Ray head; default: what the roles need on a CPU, all GPUs otherwise", int
        ),
        Option("--gpu-memory-gb", "GiB of one GPU, for the memory budget; default: what nvidia-smi says", float),
        Option("--num-gpus-per-node", "physical GPUs per node", int, 8),
        Option(
            "--num-nodes",
            "machines of the Ray cluster that the run starts; this one is the head, the others run slime.ray.worker_node; "
            "default: as many as the GPUs need",
            int,
        ),
        Option("--head-address", "HOST:PORT where other machines reach this one, the head; for --num-nodes above 1"),
        Option("--node-timeout", "seconds to wait for other machines, and for GPUs that other runs use", float, 600.0),
        Option(
            "--forward-env",
            "more environment variables to forward to all machines; instructions/cluster.md lists those always forwarded",
            nargs="+",
            default=(),
        ),
        Option("--actor-num-nodes", "training nodes", int, 1),
        Option("--actor-num-gpus-per-node", "training GPUs (ranks) on each node", int, USUAL_RANKS),
        Option("--rollout-num-gpus", "GPUs of the policy engines", int),
        Option("--rollout-num-gpus-per-engine", "GPUs per policy engine", int, 1),
        Option(
            "--ray-address",
            "HOST:PORT of a Ray cluster to join instead of starting one; auto: the one on this machine; local: start a new "
            "one; default: the variable RAY_ADDRESS, which ray job submit sets",
        ),
        Option("--run-dir", "logs, metrics and engine logs; default: runs/<date>-<time>"),
        Option(
            "--share-gpu",
            "trainer, policy engine and judge engine on one GPU at the same time; nothing is offloaded, so their memory "
            "must fit together (--sglang-max-total-tokens)",
            bool,
        ),
        Option("--train-env-vars", "JSON object: environment variables of the training ranks", json_object, {}),
        Option("--http-proxy", "proxy for HTTP calls to other machines; calls to engines never use it"),
    ),
)


COLOCATE = Group(
    "sharing GPUs between trainer and engines",
    (
        Option(
            "--colocate",
            "policy engines use all of the trainer's GPUs and alternate with it; for train.py",
            bool,
        ),
        Option(
            "--offload-train",
            "move the trainer's memory to the host while engines generate; default: with --colocate on GPUs",
            bool,
            undecided=True,
        ),
        Option(
            "--offload-rollout",
            "engines release their GPU memory while the trainer works; default: with --colocate on GPUs",
            bool,
            undecided=True,
        ),
        Option("--offload", "both --offload-train and --offload-rollout; implied by --colocate on GPUs", bool),
    ),
)
ONE_AFTER_THE_OTHER = "slime.rollout.sglang_rollout.generate_rollout"
_BESIDE_THE_TRAINER = ("slime.rollout.fully_async_rollout.generate_rollout_fully_async",)


def derive_colocate(args: Arguments) -> None:
    """Resolve ``--colocate``: with both a trainer and engines, the engines get the trainer's GPUs.

    ``offload_train`` and ``offload_rollout`` become True or False.
    """
    both = args.colocate and not (args.debug_rollout_only or args.debug_train_only)
    if both and not args.rollout_external_engine_addrs:
        args.rollout_num_gpus = trainer_gpus(args)
    for name in ("offload_train", "offload_rollout"):
        if args.colocate and not both:
            setattr(args, name, False)
        elif getattr(args, name) is None:
            setattr(args, name, args.offload or (both and args.device == "cuda"))
    if args.colocate and not both:
        args.colocate = args.offload = False


def trainer_gpus(args: Arguments) -> int:
    """GPUs of actor and critic."""
    return args.actor_num_nodes * args.actor_num_gpus_per_node + critic_gpus(args)


def check_colocate(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    given = [flag for flag in ("offload_train", "offload_rollout") if getattr(args, flag)]
    flags = "--offload" if args.offload else ", ".join(flag_of(flag) for flag in given)
    if not args.colocate:
        return [f"{flags} has no effect without --colocate"] if given else []
    problems = []
    if args.offload and len(given) < 2:
        problems.append("--offload contradicts --no-offload-train and --no-offload-rollout; remove one of them")
    if given and args.device == "cpu":
        problems.append(
            f"{flags} needs GPUs: on a CPU, trainer and engines use host memory anyway, and SGLang releases none there; "
            "remove it"
        )
    if args.rollout_external_engine_addrs or args.sglang_router_ip:
        other = "--sglang-router-ip" if args.sglang_router_ip else "--rollout-external-engine-addrs"
        problems.append(f"--colocate starts the engines itself; remove it, or {other}")
    if args.weight_update_mode == "in_place":
        problems.append(
            "--weight-update-mode in_place has no effect with --colocate, where no request runs in a push; remove it"
        )
    if args.rollout_function_path in _BESIDE_THE_TRAINER:
        problems.append(
            f"--rollout-function-path {args.rollout_function_path} collects while the trainer works, but --colocate lets only one "
            f"of them work at a time; use {ONE_AFTER_THE_OTHER}"
        )
    return problems


def check_asynchronous(args: Arguments, program: str) -> list[str]:
    """Return the problems with ``program``, which collects and trains at the same time."""
    if not args.colocate:
        return []
    return [
        f"with --colocate trainer and engines alternate, but {program} runs both at the same time; use slime/train.py, "
        "or give the engines GPUs of their own"
    ]


def check_roles(args: Arguments) -> list[str]:
    """Return the problems, one line each."""
    problems = check_machines(args)
    actor = args.actor_num_nodes * args.actor_num_gpus_per_node
    if actor < 1 and not is_rented(args):
        problems.append("--actor-num-nodes and --actor-num-gpus-per-node must be 1 or more")
    if args.actor_num_gpus_per_node > args.num_gpus_per_node:
        problems.append(
            f"--actor-num-gpus-per-node {args.actor_num_gpus_per_node} is more than a node has "
            f"(--num-gpus-per-node {args.num_gpus_per_node}); lower the first or raise the second"
        )
    if args.gpu_memory_gb is not None and not args.gpu_memory_gb > 0:
        problems.append(f"--gpu-memory-gb {args.gpu_memory_gb:g}: give the GiB of one GPU, a number above 0")
    total, size = args.rollout_num_gpus, args.rollout_num_gpus_per_engine
    if total % size:
        problems.append(f"--rollout-num-gpus {total} is not a multiple of --rollout-num-gpus-per-engine {size}")
    critic = critic_gpus(args)
    needed = gpus_needed(args)
    available = None if args.num_gpus is None else args.num_gpus * args.num_nodes
    if available is not None and needed > available and not args.share_gpu:
        own = "" if args.colocate else f"{args.rollout_num_gpus} rollout + "
        problems.append(
            f"{actor} actor + {f'{critic} critic + ' if critic else ''}{own}{args.prm_num_gpus} judge GPUs are {needed}, "
            f"but --num-gpus is {available}; lower one of them"
        )
    if args.share_gpu and (
        args.colocate or (actor, args.rollout_num_gpus, args.prm_num_gpus) not in ((1, 1, 1), (1, 1, 0))
    ):
        problems.append(
            "--share-gpu is for one trainer rank, one policy engine and one judge engine of one GPU each, without --colocate"
        )
    return problems


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
