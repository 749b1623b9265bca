"""Which GPUs the roles use: three counts, or three lists of GPU numbers.

Guarantee: lists that a run could not honour are refused, each with what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from openclaw.exceptions import ConfigError
from openclaw.launch.variables import Resolved, parse_gpus
from slime.args import Arguments
from slime.arguments.critic import critic_gpus
from slime.arguments.machines import OWN_CLUSTER

GPU_ROLES = ("actor", "rollout", "prm")


def gpus_of_roles(variables: Mapping[str, Resolved]) -> tuple[dict[str, int], tuple[int, ...] | None]:
    """Return the GPU count per role, and the GPU numbers in the order actor, rollout, judge when they were listed.

    Raises:
        ConfigError: when only some roles have a list, two share a GPU, or the numbers do not ascend.
    """
    entries = [variables[f"{role}_gpus"] for role in GPU_ROLES]
    parsed = [parse_gpus(entry.variable.name, str(entry.value)) for entry in entries]
    counts = {role: count for role, (count, _) in zip(GPU_ROLES, parsed, strict=True)}
    lists = [numbers for _, numbers in parsed]
    if all(numbers is None for numbers in lists):
        return counts, None
    if any(numbers is None for numbers in lists):
        given = ", ".join(f"{entry.variable.name}={entry.value}" for entry in entries)
        raise ConfigError(
            f"ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS: write all three as counts or all three as lists (one GPU: 7,), and not {given}"
        )
    ids = tuple(number for numbers in lists for number in numbers or ())
    if len(set(ids)) != len(ids):
        raise ConfigError("ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS share a GPU; give each role its own")
    if list(ids) != sorted(ids):
        raise ConfigError(
            "roles take GPUs in ascending order: ACTOR_GPUS the lowest numbers, then ROLLOUT_GPUS, then PRM_GPUS"
        )
    return counts, ids


def check_listed(args: Arguments) -> None:
    """Raise ConfigError when the flags want what a run with lists of GPUs cannot have: a critic, or another's cluster."""
    if critic_gpus(args):
        raise ConfigError(
            "lists of GPUs leave none for a critic; write ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS as counts"
        )
    if args.ray_address:
        raise ConfigError(
            f"lists of GPUs are for a cluster that the run starts, and this one joins {args.ray_address}, which deals out its own; "
            f"write ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS as counts, or give --ray-address {OWN_CLUSTER}"
        )
