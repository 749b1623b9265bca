"""Assign GPUs to roles, from three counts or from three lists of GPU numbers.

Guarantee: a list that a run cannot honour is an error that says what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping

from openclaw.exceptions import ConfigError
from openclaw.launch.variables import Resolved, parse_gpus
from slime.args import Arguments
from slime.arguments.critic import critic_gpus
from slime.arguments.machines import OWN_CLUSTER

GPU_ROLES = ("actor", "rollout", "prm")


def gpus_of_roles(
    variables: Mapping[str, Resolved], *, judge: bool = True
) -> tuple[dict[str, int], tuple[int, ...] | None]:
    """Return the GPU count per role, and the listed GPU numbers in the order actor, rollout, judge.

    The second value is None if the user gave counts. Without ``judge`` the judge has no GPU, whatever its variable says.

    Raises:
        ConfigError: only some roles have a list, two roles share a GPU, or the numbers do not ascend.
    """
    entries = [variables[f"{role}_gpus"] for role in GPU_ROLES]
    parsed = [parse_gpus(entry.variable.name, str(entry.value)) for entry in entries]
    counts = {role: count for role, (count, _) in zip(GPU_ROLES, parsed, strict=True)}
    lists = [numbers for _, numbers in parsed]
    if not judge:
        counts["prm"] = 0
        lists[GPU_ROLES.index("prm")] = () if lists[0] is not None else None
    if all(numbers is None for numbers in lists):
        return counts, None
    if any(numbers is None for numbers in lists):
        given = ", ".join(f"{entry.variable.name}={entry.value}" for entry in entries)
        raise ConfigError(
            f"{given} mixes counts and lists; write all three as counts or all three as lists (one GPU: 7,)"
        )
    ids = tuple(number for numbers in lists for number in numbers or ())
    if len(set(ids)) != len(ids):
        raise ConfigError("ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS share a GPU; list different GPUs for each role")
    if list(ids) != sorted(ids):
        raise ConfigError(
            "the listed GPUs are not in ascending order; give ACTOR_GPUS the lowest numbers, then ROLLOUT_GPUS, then PRM_GPUS"
        )
    return counts, ids


def check_listed(args: Arguments) -> None:
    """Raise ConfigError if a run with lists of GPUs has a critic or joins an existing cluster."""
    if critic_gpus(args):
        raise ConfigError(
            "lists of GPUs leave no GPU for a critic; write ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS as counts"
        )
    if args.ray_address:
        raise ConfigError(
            f"lists of GPUs need a cluster that the run starts itself, but this run joins {args.ray_address}, which assigns GPUs; "
            f"write ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS as counts, or add --ray-address {OWN_CLUSTER}"
        )
