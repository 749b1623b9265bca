"""A plan: everything about a run that is known before it starts.

`openclaw.launch.resolve.make_plan` resolves a plan and `openclaw.launch.report` shows it. `openclaw.launch.__main__`
executes exactly ``Plan.command`` with ``Plan.environment``, so ``--dry-run`` shows what a run does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openclaw.config.method_config import MethodConfig
from openclaw.config.runtime import RuntimeConfig
from openclaw.launch.profiles import Profile
from openclaw.launch.variables import Resolved
from slime.args import Arguments
from slime.arguments.algorithm import algorithm_warnings
from slime.arguments.critic import critic_gpus
from slime.arguments.memory_budget import Budget


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run before it starts.

    Attributes:
        profile: profile of the machine.
        method: the method as named on the command line.
        own: the method's configuration.
        variables: the launcher's variables, by field.
        runtime: configuration of the runtime process.
        runtime_sources: source of each variable's value in ``runtime`` and ``own``.
        sections: the trainer's flags, in the groups that users know.
        args: the parsed flags.
        problems: why the plan cannot work; empty if it can.
        command: command of the process that the launcher becomes.
        environment: environment of that process.
        gpu_ids: GPU numbers in the order of ``roles``; None if the user gave counts.
        budget: memory budget of each GPU.
    """

    profile: Profile
    method: str
    own: MethodConfig
    variables: Mapping[str, Resolved]
    runtime: RuntimeConfig
    runtime_sources: Mapping[str, str]
    sections: Mapping[str, tuple[str, ...]]
    args: Arguments
    problems: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    gpu_ids: tuple[int, ...] | None
    budget: Budget

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what works and may not do what the user expects, one line each."""
        return (*algorithm_warnings(self.args), *self.budget.warnings)

    @property
    def gpus_needed(self) -> int:
        """Return the total number of GPUs of all roles."""
        return sum(count for _, count in self.roles)

    @property
    def roles(self) -> tuple[tuple[str, int], ...]:
        """Return the roles in the order of their GPUs, each with its number of GPUs."""
        return roles_of(self.args)


def roles_of(args: Arguments) -> tuple[tuple[str, int], ...]:
    """Return the roles in the order of their GPUs, each with its number of GPUs."""
    return (
        ("actor", args.actor_num_nodes * args.actor_num_gpus_per_node),
        ("critic", critic_gpus(args)),
        ("rollout", args.rollout_num_gpus),
        ("judge", args.prm_num_gpus),
    )
