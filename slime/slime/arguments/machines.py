"""Decide which Ray cluster a run uses and how many machines it needs.

A run either joins the cluster of ``--ray-address`` or ``RAY_ADDRESS`` (``ray job submit`` sets the variable), becomes
the head of ``--num-nodes`` machines at ``--head-address``, or starts a cluster on this machine alone.
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
