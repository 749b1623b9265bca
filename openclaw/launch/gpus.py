"""GPUs, memory and machines of a plan: which role has which GPU, whether it fits, and how other machines join.

Guarantees: a list of GPUs that a run cannot honour is an error that says what to write instead. A dry run prints the memory
check that a start makes, with the same arguments; on a machine without GPUs it assumes the profile's.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from groundwork.exceptions import ConfigError
from groundwork.variables import Value
from openclaw.launch.methods import REPOSITORY, recommended
from openclaw.launch.profiles import Profile
from openclaw.launch.task import head_address
from openclaw.launch.variables import Resolved, parse_gpus
from slime.args import Arguments, required
from slime.arguments.algorithm import critic_gpus
from slime.arguments.cluster import OWN_CLUSTER, missing_secret
from slime.arguments.dry_run import of_machine
from slime.arguments.memory_budget import Budget, budget_of
from slime.arguments.memory_budget.fixes import Fix, as_flags
from slime.arguments.memory_budget.machine import gpu_memory

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


VARIABLES = {
    "max_tokens_per_gpu": "MAX_TOKENS_PER_GPU",
    "sglang_mem_fraction_static": "MEM_FRACTION_STATIC",
    "sglang_context_length": "CONTEXT_LENGTH",
    "actor_num_gpus_per_node": "ACTOR_GPUS",
    "rollout_num_gpus_per_engine": "TP",
    "use_lora": "USE_LORA",
    "gradient_checkpointing": "USE_GRADIENT_CHECKPOINTING",
}
"""The launcher's variable for each argument."""


def as_variables(change: Fix) -> str:
    """Return the fix to type: ``MAX_TOKENS_PER_GPU=8192``, or a flag if no variable sets it."""
    name, value = change.values[0]
    if name not in VARIABLES:
        return as_flags(change)
    return f"{VARIABLES[name]}={1 if value is True else value}"


def plan_budget(profile: Profile, args: Arguments, gpu_ids: Sequence[int] | None, problems: Sequence[str]) -> Budget:
    """Return the budget of ``args``; empty without a placement, or if ``problems`` go beyond this machine."""
    if not all(of_machine(problem) for problem in problems):
        return Budget(())
    memory = gpu_memory(args, f"profile {profile.name}", profile.gpu_memory_gb)
    names = tuple(dict.fromkeys(gpu_ids)) if gpu_ids else None
    try:
        return budget_of(args, memory, names=names, spell=as_variables)
    except ConfigError:
        return Budget(())


DEFAULT_PORT = 6379
LOOPBACK = ("127.0.0.1", "localhost", "::1")


def check_nodes(values: Mapping[str, Value], gpu_ids: tuple[int, ...] | None, environment: Mapping[str, str]) -> None:
    """Raise ConfigError if the machines of a run could not find or trust each other."""
    count, rank, head = int(str(values["nnodes"])), int(str(values["node_rank"])), values["master_addr"]
    if count == 1:
        given = {
            "NODE_RANK": rank,
            "MASTER_ADDR": None if head in LOOPBACK else head,
            "MASTER_PORT": None if values["master_port"] == DEFAULT_PORT else values["master_port"],
            "NODE_ADDR": values["node_addr"],
        }
        words = [f"{name}={value}" for name, value in given.items() if value]
        if words:
            raise ConfigError(f"{' '.join(words)} is for several machines; set NNODES to their number, or unset it")
        return
    problems = []
    if rank >= count:
        problems.append(f"NODE_RANK={rank} with NNODES={count}; machines are numbered 0 to {count - 1}")
    if not head or head in LOOPBACK:
        problems.append(f"NNODES={count} needs MASTER_ADDR, the address at which the others reach the head")
    if gpu_ids is not None:
        problems.append("lists of GPUs are for one machine; write ACTOR_GPUS, ROLLOUT_GPUS and PRM_GPUS as counts")
    if problem := missing_secret(environment):
        problems.append(problem)
    if problems:
        raise ConfigError("\n  - ".join(["several machines:", *problems]) if len(problems) > 1 else problems[0])


def check_rank(args: Arguments, values: Mapping[str, Value]) -> None:
    """Raise ConfigError if this machine is none of those that play and train a task, or has no head to join."""
    machines, rank = args.num_nodes, int(str(values["node_rank"]))
    if not rank:
        return
    if machines == 1:
        raise ConfigError(f"NODE_RANK={rank} is for several machines; set NNODES to their number, or unset it")
    if rank >= machines:
        raise ConfigError(
            f"NODE_RANK={rank}, but this run has machines 0 to {machines - 1}; correct one of NNODES, NODE_RANK"
        )
    if not values["master_addr"] and args.head_address == head_address(values):
        raise ConfigError(f"NODE_RANK={rank} needs MASTER_ADDR, the address at which the others reach the head")


def node_command(args: Arguments, values: Mapping[str, Value]) -> tuple[str, ...]:
    """Return the command of a machine other than the head; it honours flags given after the script's name."""
    own = ("--node-address", str(values["node_addr"])) if values["node_addr"] else ()
    return (
        *(sys.executable, "-m", "slime.ray.worker_node"),
        *(
            "--head-address",
            required("--head-address", args.head_address),
            "--num-gpus",
            str(args.num_gpus_per_node),
            "--device",
            args.device,
        ),
        *("--timeout", f"{args.node_timeout:g}"),
        *("--log", str(Path(args.run_dir) / "logs" / f"ray-node-{values['node_rank']}.log"), *own),
    )
