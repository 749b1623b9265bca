"""The memory budget of a plan, with fixes expressed as variables of the launcher.

Guarantees: a dry run prints the check that `slime.arguments.memory_budget` makes at start, with the same arguments. On
a machine without GPUs it assumes the profile's.
"""

from __future__ import annotations

from collections.abc import Sequence

from groundwork.exceptions import ConfigError
from openclaw.launch.profiles import Profile
from slime.args import Arguments
from slime.arguments.dry_run import of_machine
from slime.arguments.memory_budget import Budget, budget_of
from slime.arguments.memory_budget.fixes import Fix, as_flags
from slime.arguments.memory_budget.machine import gpu_memory

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
