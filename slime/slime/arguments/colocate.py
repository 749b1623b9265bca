"""Trainer and policy engines on the same GPUs (``--colocate``): its flags, what follows from them, what they do not go with."""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.critic import critic_gpus
from slime.arguments.option import Group, Option

COLOCATE = Group(
    "sharing GPUs between trainer and engines",
    (
        Option(
            "--colocate",
            "policy engines run on the trainer's GPUs, as many as it has, and take turns with it; for train.py",
            bool,
        ),
        Option(
            "--offload-train",
            "the trainer's memory is on the host while engines generate; default: with --colocate on GPUs",
            bool,
            undecided=True,
        ),
        Option(
            "--offload-rollout",
            "the engines give their memory back while the trainer works; default: with --colocate on GPUs",
            bool,
            undecided=True,
        ),
        Option("--offload", "both, which --colocate on GPUs does by itself", bool),
    ),
)
ONE_AFTER_THE_OTHER = "slime.rollout.sglang_rollout.generate_rollout"
_BESIDE_THE_TRAINER = ("slime.rollout.fully_async_rollout.generate_rollout_fully_async",)


def derive_colocate(args: Arguments) -> None:
    """Settle who shares: without trainer or without engines nobody; else the engines get the trainer's GPUs.

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
            f"{flags} needs GPUs: on a CPU trainer and engines are in host memory as it is, and SGLang gives none back there; "
            "remove it"
        )
    if args.rollout_external_engine_addrs or args.sglang_router_ip:
        other = "--sglang-router-ip" if args.sglang_router_ip else "--rollout-external-engine-addrs"
        problems.append(f"--colocate starts the engines itself; remove it, or {other}")
    if args.weight_update_mode == "in_place":
        problems.append("--weight-update-mode in_place has no effect with --colocate, where no request runs in a push")
    if args.rollout_function_path in _BESIDE_THE_TRAINER:
        problems.append(
            f"--rollout-function-path {args.rollout_function_path} collects while the trainer works, and --colocate lets one "
            f"of them work at a time; use {ONE_AFTER_THE_OTHER}"
        )
    return problems


def check_asynchronous(args: Arguments, program: str) -> list[str]:
    """Return what speaks against collecting and training at the same time, which ``program`` does."""
    if not args.colocate:
        return []
    return [
        f"--colocate lets trainer and engines take turns, and {program} has both work at the same time; use slime/train.py, "
        "or give the engines GPUs of their own"
    ]
