"""Who gets which GPUs."""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.critic import critic_gpus
from slime.arguments.machines import check_machines, gpus_needed


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
