"""Flags and checks of placement: devices, GPUs per role, Ray, and GPU sharing (``--colocate``, ``--share-gpu``)."""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.critic import critic_gpus
from slime.arguments.machines import check_machines, gpus_needed
from slime.arguments.option import Group, Option, json_object

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
    flags = "--offload" if args.offload else ", ".join(f"--{flag.replace('_', '-')}" for flag in given)
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
    if actor < 1:
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
