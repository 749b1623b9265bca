"""What a plan is: everything about a run that is known before it starts.

`openclaw.launch.resolve.make_plan` resolves it, `openclaw.launch.report.describe` shows it, and what `openclaw.launch.__main__`
executes is exactly ``Plan.command`` with ``Plan.environment``. So ``--dry-run`` is the truth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from openclaw.config.method_config import MethodConfig
from openclaw.config.runtime import RuntimeConfig
from openclaw.launch.profiles import Profile
from openclaw.launch.variables import Resolved
from slime.args import Arguments
from slime.arguments.critic import critic_gpus
from slime.arguments.memory_budget import Budget


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run before it starts.

    Attributes:
        profile: of the machine.
        method: as it was named on the command line.
        own: the method's configuration.
        variables: the launcher's, by field.
        runtime: configuration of the runtime process.
        runtime_sources: where the value of each variable of ``runtime`` and ``own`` comes from.
        sections: flags of the trainer, by the names under which users know the groups.
        args: what the flags mean.
        problems: why the plan cannot work; empty when it can.
        command: of the process that the launcher becomes.
        environment: of that process.
        gpu_ids: numbers of the GPUs in the order of ``roles``; None where they were given as counts.
        budget: of each GPU's memory.
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
    def gpus_needed(self) -> int:
        """GPUs that the roles use together."""
        return sum(count for _, count in self.roles)

    @property
    def roles(self) -> tuple[tuple[str, int], ...]:
        """The roles in the order of their GPUs, each with how many it uses."""
        return roles_of(self.args)


def roles_of(args: Arguments) -> tuple[tuple[str, int], ...]:
    """Return the roles in the order of their GPUs, each with how many it uses."""
    return (
        ("actor", args.actor_num_nodes * args.actor_num_gpus_per_node),
        ("critic", critic_gpus(args)),
        ("rollout", args.rollout_num_gpus),
        ("judge", args.prm_num_gpus),
    )
