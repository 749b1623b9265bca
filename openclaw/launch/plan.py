"""A plan: everything about a run that is known before it starts.

`openclaw.launch.resolve.make_plan` resolves a plan and `openclaw.launch.report` shows it. `openclaw.launch.__main__`
executes exactly ``Plan.command`` with ``Plan.environment``, so ``--dry-run`` shows what a run does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from groundwork.variables import Value, Variable
from openclaw.config.method_config import MethodConfig
from openclaw.config.runtime import RuntimeConfig
from openclaw.launch.profiles import Profile
from openclaw.launch.task import TaskConfig
from openclaw.launch.variables import Resolved
from slime.args import Arguments
from slime.arguments.algorithm import algorithm_warnings, critic_gpus
from slime.arguments.memory_budget import Budget


@dataclass(frozen=True)
class Recipe:
    """What a person asks for: ``Recipe("mymethod", "qwen3-4B", GPU8)``.

    Attributes:
        what: a method, or with ``task`` a task: its name in this repository, or a folder.
        model: file in ``slime/scripts/models`` with the shape to check against the checkpoint; None for the checkpoint's.
        machine: profile of the machine.
        task: whether ``what`` is a task.
        evaluates_only: whether the task's held-out part is only evaluated, without a trainer.

    Example:
        >>> from openclaw.launch.methods import methods_of
        >>> from openclaw.launch.profiles import PROFILES
        >>> from openclaw.launch.resolve import make_plan
        >>> [method] = [method.config for method in methods_of() if method.config.recommended]
        >>> plan = make_plan(Recipe(method.name, "qwen3-4B", PROFILES["gpu8"]), ["--lr", "1e-6"], {})
        >>> plan.args.lr, plan.gpus_needed
        (1e-06, 8)
    """

    what: str
    model: str | None
    machine: Profile
    task: bool = False
    evaluates_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A run before it starts.

    Attributes:
        recipe: what the user asked for; its profile is that of the run.
        folder: folder of the method or task.
        own: the method's or the task's configuration.
        variables: the launcher's variables, by field.
        runtime: configuration of the runtime process; None for a task, which has none.
        runtime_sources: source of each variable's value in ``runtime`` and ``own_values``.
        sections: the trainer's flags, in the groups that users know.
        args: the parsed flags.
        problems: why the plan cannot work; empty if it can.
        command: command of the process that the launcher becomes.
        environment: environment of that process.
        gpu_ids: GPU numbers in the order of ``roles``; None if the user gave counts.
        budget: memory budget of each GPU.
        notes: what was decided for the user, and what has no effect, one line each.
    """

    recipe: Recipe
    folder: Path
    own: MethodConfig | TaskConfig
    variables: Mapping[str, Resolved]
    runtime: RuntimeConfig | None
    runtime_sources: Mapping[str, str]
    sections: Mapping[str, tuple[str, ...]]
    args: Arguments
    problems: tuple[str, ...]
    command: tuple[str, ...]
    environment: Mapping[str, str]
    gpu_ids: tuple[int, ...] | None
    budget: Budget
    notes: tuple[str, ...] = ()

    @property
    def profile(self) -> Profile:
        """Return the profile of the machine."""
        return self.recipe.machine

    @property
    def title(self) -> str:
        """Return what runs: ``method combine`` or ``task swe``."""
        return f"{'task' if self.recipe.task else 'method'} {self.recipe.what}"

    @property
    def live(self) -> RuntimeConfig:
        """Return the configuration of the runtime process of a run on live conversations."""
        assert self.runtime is not None
        return self.runtime

    @property
    def own_values(self) -> list[tuple[Variable, Value]]:
        """Return the variables of the method or task, and of what a task reads beside them, each once with its value."""
        kinds = self.own.reads if isinstance(self.own, TaskConfig) else ()
        values: dict[str, tuple[Variable, Value]] = {}
        for config in (self.own, *(kind.from_env(self.environment) for kind in kinds)):
            for variable, value in config.values():
                values.setdefault(variable.name, (variable, value))
        return [*values.values()]

    @property
    def warnings(self) -> tuple[str, ...]:
        """Return what works and may not do what the user expects, one line each."""
        return (*algorithm_warnings(self.args), *self._unused_reward, *self.budget.warnings)

    @property
    def _unused_reward(self) -> tuple[str, ...]:
        path = self.args.custom_rm_path
        if self.runtime is None or not path:
            return ()
        return (
            f"--custom-rm-path {path} scores evaluation sets only; the judge scores the turns of conversations. To judge them "
            "in Python: OPENCLAW_JUDGE_CLASS=module.Class, with score(prompt, response, next_state)",
        )

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
        ("actor", 0 if args.debug_rollout_only else args.actor_num_nodes * args.actor_num_gpus_per_node),
        ("critic", 0 if args.debug_rollout_only else critic_gpus(args)),
        ("rollout", args.rollout_num_gpus),
        ("judge", args.prm_num_gpus),
    )
