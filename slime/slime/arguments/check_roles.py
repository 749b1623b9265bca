"""Who gets which GPUs."""

from __future__ import annotations

from argparse import Namespace

from slime.arguments.critic import critic_gpus


def check_roles(args: Namespace) -> list[str]:
    """Return the problems, one line each."""
    problems = []
    problems += _check_nodes(args)
    actor = args.actor_num_nodes * args.actor_num_gpus_per_node
    if actor < 1:
        problems.append("--actor-num-nodes and --actor-num-gpus-per-node must be 1 or more")
    if args.actor_num_gpus_per_node > args.num_gpus_per_node:
        problems.append(
            f"--actor-num-gpus-per-node {args.actor_num_gpus_per_node} is more than a node has "
            f"(--num-gpus-per-node {args.num_gpus_per_node}); lower the first or raise the second"
        )
    total, size = args.rollout_num_gpus, args.rollout_num_gpus_per_engine
    if total % size:
        problems.append(f"--rollout-num-gpus {total} is not a multiple of --rollout-num-gpus-per-engine {size}")
    if args.colocate:
        problems.append("--colocate is not implemented yet; give trainer and engines GPUs of their own")
    critic = critic_gpus(args)
    needed = (
        (0 if args.debug_rollout_only else actor + critic)
        + (0 if args.debug_train_only or args.rollout_external_engine_addrs else args.rollout_num_gpus)
        + (0 if args.debug_train_only else args.prm_num_gpus)
    )
    available = None if args.num_gpus is None else args.num_gpus * args.num_nodes
    if available is not None and needed > available and not args.share_gpu:
        problems.append(
            f"{actor} actor + {f'{critic} critic + ' if critic else ''}{args.rollout_num_gpus} rollout + {args.prm_num_gpus} judge GPUs are {needed}, "
            f"but --num-gpus is {available}; lower one of them"
        )
    if args.share_gpu and (
        args.colocate or (actor, args.rollout_num_gpus, args.prm_num_gpus) not in ((1, 1, 1), (1, 1, 0))
    ):
        problems.append(
            "--share-gpu is for one trainer rank, one policy engine and one judge engine of one GPU each, without --colocate"
        )
    return problems


def _check_nodes(args: Namespace) -> list[str]:
    problems = []
    if args.ray_address:
        problems.append(
            "--ray-address is not supported: the run starts its own cluster; use --num-nodes N --head-address HOST:PORT"
        )
    if args.num_nodes < 1:
        problems.append(f"--num-nodes {args.num_nodes}: give 1 or more")
    if args.num_nodes == 1:
        if args.actor_num_nodes > 1:
            problems.append(
                f"--actor-num-nodes {args.actor_num_nodes} needs --num-nodes {args.actor_num_nodes} or more"
            )
        problems += [
            f"{flag} has no effect on one machine; remove it, or give --num-nodes 2 or more"
            for flag, given in (("--head-address", args.head_address), ("--forward-env", args.forward_env))
            if given
        ]
        return problems
    host, _, port = (args.head_address or "").rpartition(":")
    if not host or not port.isdigit():
        problems.append(
            f"--num-nodes {args.num_nodes} needs --head-address HOST:PORT, where the others reach this machine"
        )
    if args.num_gpus not in (None, args.num_gpus_per_node):
        problems.append(
            f"--num-gpus {args.num_gpus}: with several machines each brings --num-gpus-per-node {args.num_gpus_per_node}; "
            "remove --num-gpus"
        )
    if args.actor_num_nodes > args.num_nodes:
        problems.append(f"--actor-num-nodes {args.actor_num_nodes} is more than --num-nodes {args.num_nodes}")
    if args.share_gpu or args.http_proxy:
        other = "--share-gpu" if args.share_gpu else "--http-proxy"
        problems.append(f"{other} is for one machine; remove it, or --num-nodes")
    for role, size in (("rollout", args.rollout_num_gpus_per_engine), ("prm", args.prm_num_gpus_per_engine)):
        if args.num_gpus_per_node % size:
            problems.append(
                f"--{role}-num-gpus-per-engine {size} does not divide --num-gpus-per-node {args.num_gpus_per_node}: an engine "
                "stays on one machine"
            )
    return problems
