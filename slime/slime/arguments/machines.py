"""Which Ray cluster a run is in, and how many machines it needs.

A run joins the cluster that ``--ray-address`` or the variable ``RAY_ADDRESS`` names (``ray job submit`` sets it), is the head of
``--num-nodes`` machines at ``--head-address``, or starts a cluster of this machine alone.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from slime.args import Arguments
from slime.arguments.critic import critic_gpus

ADDRESS_VARIABLE = "RAY_ADDRESS"
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
MODE_VARIABLE = "RAY_AUTH_MODE"
OWN_CLUSTER = "local"
_NO_CLUSTER = {
    "ray://": "the address of Ray's client, whose program runs on no machine of the cluster",
    "http": "the address of Ray's dashboard",
}


def gpus_needed(args: Arguments) -> int:
    """GPUs of all roles together; those that roles share count once."""
    if args.share_gpu:
        return 1
    trainer = 0 if args.debug_rollout_only else args.actor_num_nodes * args.actor_num_gpus_per_node + critic_gpus(args)
    engines = 0 if args.debug_train_only or args.rollout_external_engine_addrs else args.rollout_num_gpus
    judge = 0 if args.debug_train_only else args.prm_num_gpus
    return (max(trainer, engines) if args.colocate else trainer + engines) + judge


def check_given(args: Arguments) -> list[str]:
    """Return the problems of the flags as they were given, one line each; `derive_machines` fills them."""
    problems = []
    several = args.num_nodes is not None and args.num_nodes > 1
    if args.num_nodes is not None and args.num_nodes < 1:
        problems.append(f"--num-nodes {args.num_nodes}: give 1 or more")
    host, _, port = (args.head_address or "").rpartition(":")
    if args.head_address and not (host and port.isdigit()):
        problems.append(f"--head-address {args.head_address}: write HOST:PORT, where the others reach this machine")
    address = _existing(args)
    if address is None:
        if several and not args.head_address:
            problems.append(
                f"--num-nodes {args.num_nodes} needs --head-address HOST:PORT, where the others reach this machine"
            )
        return problems
    source = "--ray-address" if args.ray_address else ADDRESS_VARIABLE
    given = (("--head-address", args.head_address), ("--num-nodes", args.num_nodes), ("--num-gpus", args.num_gpus))
    problems += [
        f"{flag} is for a cluster that the run starts, and {source} {address} names one that exists; remove it, or give "
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
    """Return the address of the Ray cluster that the variable names; None without one."""
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
    """The address of the cluster to join; what the command line says of a cluster wins over the variable."""
    if args.ray_address:
        return None if args.ray_address == OWN_CLUSTER else args.ray_address
    return None if args.head_address else named_cluster(os.environ)


def derive_machines(args: Arguments) -> None:
    """Fill the cluster to join and the number of machines; in a cluster that exists the latter is what it has, at the start.

    With ``--num-gpus``, and on a CPU, where GPUs are logical, a machine has as many as it takes.
    """
    args.ray_address = _existing(args)
    if args.num_nodes is None:
        trainer = 1 if args.debug_rollout_only else args.actor_num_nodes
        counted = args.device == "cuda" and args.num_gpus is None
        args.num_nodes = max(trainer, -(-gpus_needed(args) // args.num_gpus_per_node) if counted else 1)


def missing_machines(args: Arguments) -> str | None:
    """Return how to give a run its other machines, or None when it has them or needs none."""
    if args.num_nodes == 1 or args.head_address or args.ray_address:
        return None
    return (
        f"the run needs {args.num_nodes} machines of {args.num_gpus_per_node} GPUs and is in no Ray cluster: submit it to one "
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
            f"--num-gpus {args.num_gpus}: with several machines each brings --num-gpus-per-node {args.num_gpus_per_node}; "
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
                f"--{role}-num-gpus-per-engine {size}: with several machines an engine takes whole ones, or a part that "
                f"divides --num-gpus-per-node {args.num_gpus_per_node}"
            )
    return problems
