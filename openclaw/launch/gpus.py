"""Assign GPUs to roles, from three counts or from three lists of GPU numbers.

Guarantee: a list that a run cannot honour is an error that says what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from groundwork.exceptions import ConfigError
from openclaw.launch.methods import REPOSITORY, recommended
from openclaw.launch.variables import Resolved, parse_gpus
from slime.args import Arguments
from slime.arguments.critic import critic_gpus
from slime.arguments.machines import OWN_CLUSTER

GPU_ROLES = ("actor", "rollout", "prm")
# The fewest GPUs that a kind of script needs, and how its name ends; the first that fits counts.
GPUS_OF_LARGEST = 8
SCRIPTS_BY_GPUS = ((4, "3_4b_*_lora.sh"), (1, "_24gb.sh"), (0, "tiny_cpu.sh"))


def what_fits(folder: Path, gpus: int) -> str:
    """Return what to type on a machine with this many GPUs: a script of the run's folder for it, or of the usual method's."""
    if gpus >= GPUS_OF_LARGEST:
        return "lower NUM_GPUS, ACTOR_GPUS, ROLLOUT_GPUS or PRM_GPUS"
    ending = next(ending for least, ending in SCRIPTS_BY_GPUS if gpus >= least)
    own = sorted(folder.glob(f"run_*{ending}"))
    script = (own or sorted(recommended().folder.glob(f"run_*{ending}")))[0]
    shown = script.relative_to(REPOSITORY) if script.is_relative_to(REPOSITORY) else script
    return f"run the script for {gpus or 'no'} GPU{'s' * (gpus != 1)}: bash {shown}"


def split_for(folder: Path, gpus: int) -> str:
    """Return what to type where the roles want more GPUs than there are: a script, or variables that split these GPUs."""
    if gpus >= GPUS_OF_LARGEST:
        return "lower ACTOR_GPUS, ROLLOUT_GPUS or PRM_GPUS, or raise NUM_GPUS"
    fits = what_fits(folder, gpus)
    if gpus < len(GPU_ROLES):
        return fits
    actor = gpus // 2
    rollout, judge = -(-(gpus - actor) // 2), (gpus - actor) // 2
    sizes = f"TP={2 - rollout % 2} PRM_TP={2 - judge % 2}"
    return f"{fits}, or split them with ACTOR_GPUS={actor} ROLLOUT_GPUS={rollout} PRM_GPUS={judge} {sizes}"


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
