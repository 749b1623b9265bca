"""What an agent folder declares to the launcher: a class ``Task`` in its module ``<name>_task.py``.

A `TaskConfig` is for ``--task`` what a `openclaw.config.method_config.MethodConfig` is for ``--method``: variables, defaults, profiles
and flags. Guarantee: the launcher knows no task by name, so a new folder ``<name>-rl`` needs no change outside itself.

    @dataclass(frozen=True, kw_only=True)
    class Task(TaskConfig):
        name = "sums"
        generate = "generate_sums.generate"
        columns = ("--input-key", "question")
        defaults = {**TaskConfig.defaults, "BATCH_SIZE": 8}

        def rows(self, split, file):
            return write_rows(split, file)
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple, NoReturn

from groundwork.command_line import nearest, nearest_path
from groundwork.exceptions import ConfigError
from groundwork.variables import EnvironmentConfig, Value, Variable, variable
from openclaw.config.runtime_variables import RuntimeVariables
from openclaw.judge.prompts import MOST_MEMBERS
from openclaw.launch.methods import REPOSITORY, imported
from openclaw.launch.profiles import Profile

if TYPE_CHECKING:
    from openclaw.launch.flags import FlagInputs
    from openclaw.launch.plan import Plan

__all__ = ["REPOSITORY", "EvalSet", "TaskConfig", "TaskProfile", "variable"]

Words = list[object]
Split = Literal["train", "heldout"]
TASK_CLASS = "Task"
JUDGED = "_judge"
"""End of the name of a profile in which a judge scores each step."""
KIND_VARIABLE = "ENV_TYPE"
GROUP_REWARD = "agentrl.rollout.group_reward.group_reward"
"""Of `TaskConfig.group_judge`."""


class EvalSet(NamedTuple):
    """The held-out tasks of a run: name of the set, key of the reward, and further flags of the evaluation."""

    name: str
    reward_key: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True)
class TaskProfile:
    """One size of a run: defaults of the launcher's and the task's variables, flags of its own, and the kind of device.

    Example: ``TaskProfile({"NNODES": 4, "TP": 4}, ("--norm-epsilon", "1e-6"))``.
    """

    variables: Mapping[str, Value] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    device: Literal["cuda", "cpu"] = "cuda"


@dataclass(frozen=True, kw_only=True)
class TaskConfig(EnvironmentConfig):
    """Variables of a task; class attributes hold everything else that the launcher needs.

    Attributes:
        name: the word after ``--task``; the folder is ``<name>-rl``.
        generate: plugin path of the generate function.
        reward: plugin path of the reward function; None if the generate function gives the reward.
        columns: flags that name the columns of a row.
        evaluation: the held-out tasks; None for none.
        constants: further flags of every run.
        spread: whether ``NNODES`` machines train and serve, each with the GPU counts; otherwise one does. A judge
            is on a machine of its own.
        watches_kl: whether the reference model is loaded even if ``KL_LOSS_COEF`` is 0.
        kl_type: estimator of the KL to the reference.
        engine_context: ``--sglang-context-length``; None for the model's.
        defaults: defaults of the launcher's variables.
        aliases: further names of the launcher's variables.
        profiles: sizes of a run by the word after ``--profile``; the first one is the default.
        reads: what else the run's processes read from the environment.

    Example:
        >>> class Config(TaskConfig):
        ...     name = "riddles"
        ...     generate = "riddles_agent.generate"
        ...     profiles = {"gpu8": TaskProfile({"TP": 2}), "cpu": TaskProfile(device="cpu")}
        >>> config = Config.from_env({"N_SAMPLES": "4"})
        >>> config.samples, config.profile_variables("gpu8", {})
        (4, {'TP': 2})
    """

    name: ClassVar[str]
    generate: ClassVar[str]
    reward: ClassVar[str | None] = None
    columns: ClassVar[tuple[str, ...]] = ()
    evaluation: ClassVar[EvalSet | None] = None
    constants: ClassVar[tuple[str, ...]] = ()
    spread: ClassVar[bool] = True
    watches_kl: ClassVar[bool] = True
    kl_type: ClassVar[str] = "k3"
    engine_context: ClassVar[int | None] = None
    defaults: ClassVar[Mapping[str, Value]] = {"LEARNING_RATE": 1e-6, "OPENCLAW_FUSES": "off"}
    aliases: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "NNODES": ("NUM_NODES", "TRAIN_NUM_NODES"),
        "ACTOR_GPUS": ("ACTOR_GPUS_PER_NODE",),
        "ROLLOUT_GPUS": ("ROLLOUT_GPUS_PER_NODE",),
        "TP": ("ROLLOUT_NUM_GPUS_PER_ENGINE",),
        "PRM_TP": ("PRM_GPUS_PER_ENGINE",),
    }
    profiles: ClassVar[Mapping[str, TaskProfile]] = {"gpu8": TaskProfile()}
    reads: ClassVar[tuple[type[EnvironmentConfig], ...]] = ()

    run_name: str | None = variable("RUN_NAME", None, "name of the run; default: the script's")
    server_url: str | None = variable("ENV_SERVER_URL", None, "pool or router that lends environments")
    prompt_data: str | None = variable("PROMPT_DATA", None, "rows of tasks; default: written for the run")
    eval_data: str | None = variable("EVAL_DATA", None, "rows of held-out tasks; default: written for the run")
    eval_interval: int | None = variable(
        "EVAL_INTERVAL", None, "rollouts between evaluations on held-out tasks; default: none", minimum=1
    )
    samples: int = variable("N_SAMPLES", 8, "episodes of a task", minimum=1)
    context: int = variable("CONTEXT_LENGTH", 16384, "most tokens of a conversation", minimum=1)
    group_judge: bool = variable(
        "GROUP_JUDGE", False, "1: a judge compares the episodes of a task, by one question, and gives their rewards"
    )
    prm_url: str | None = variable(
        "PRM_SGLANG_URL", None, "judge that runs already, instead of engines of the run's own"
    )
    prm_m: int = variable("PRM_M", 1, "votes on a step", minimum=1)
    prm_step_coef: float = variable("PRM_STEP_COEF", 1.0, "weight of a step's score")
    prm_temperature: float = variable("PRM_TEMPERATURE", 0.6, "temperature of the judge", minimum=0.0)
    prm_max_new_tokens: int = variable("PRM_MAX_NEW_TOKENS", 4096, "most tokens of a verdict", minimum=1)

    @classmethod
    def profile_variables(cls, name: str, environment: Mapping[str, str]) -> Mapping[str, Value]:
        """Return the defaults of a profile in an environment."""
        return cls.profiles[name].variables

    def check(self, environment: Mapping[str, str], *, trains: bool) -> None:
        """Refuse variables that cannot work, before anything starts.

        Raises:
            ConfigError: says what to set.
        """

    def summary(self, environment: Mapping[str, str], *, trains: bool) -> Mapping[str, str]:
        """Return lines of the plan about the run's tasks, each by the word before it."""
        return {"tasks": self.name}

    def missing_here(self, environment: Mapping[str, str]) -> str | None:
        """Return what the tasks need and this machine lacks, with what to type; None if all of it is here."""
        return None

    @property
    def interval(self) -> int | None:
        """Rollouts between evaluations; None for none."""
        return self.eval_interval

    def rows(self, split: Split, file: Path) -> int:
        """Write the rows of a split that no variable names; return their number.

        Raises:
            ConfigError: there is no task.
        """
        raise ConfigError(f"{self.name} writes no rows; set PROMPT_DATA to a file of them")

    def file(self, split: Split, run_dir: Path) -> Path:
        """Return the file of a split in the run's folder."""
        return run_dir / ("train.jsonl" if split == "train" else "eval.jsonl")

    def pool(self, run_dir: Path) -> list[str] | None:
        """Return the arguments of a pool beside the trainer; None if the trainer's process has the environments."""
        return None

    def for_processes(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Return variables to set for the run's processes, which have the caller's, too."""
        return {}

    def own_flags(self) -> Words:
        """Return flags of the task's own plugins."""
        return []

    def eval_flags(self) -> Words:
        """Return further flags of an evaluation that depend on variables."""
        return []

    def sizes(self, run: FlagInputs) -> tuple[object, object, object]:
        """Return rollouts, tasks of a rollout, and episodes of a task."""
        return run.values["num_rollout"], run.values["batch_size"], self.samples

    def rollout_flags(self, run: FlagInputs) -> Words:
        """Return the flags of plugins, data and sizes of a rollout."""
        rollouts, tasks, members = self.sizes(run)
        if self.group_judge:
            self._check_group_judge(run, int(str(members)))
        return [
            *self._plugins(),
            *("--prompt-data", self.prompt_data or self.file("train", run.run_dir)),
            *("--rollout-shuffle", "--balance-data", "--dynamic-history"),
            *("--num-rollout", rollouts, "--rollout-batch-size", tasks, "--n-samples-per-prompt", members),
            *("--rollout-max-response-len", run.values["max_response_length"]),
            *("--rollout-max-context-len", self.context, "--rollout-temperature", 1),
            *([*self.evaluation_flags(run.run_dir), "--eval-interval", self.interval] if self.interval else []),
        ]

    def evaluation_flags(self, run_dir: Path) -> Words:
        """Return the flags of an evaluation on held-out tasks."""
        if self.evaluation is None:
            raise ConfigError(f"{self.name} has no held-out tasks; unset EVAL_INTERVAL")
        name, key, flags = self.evaluation
        data = self.eval_data or self.file("heldout", run_dir)
        return ["--eval-prompt-data", name, data, "--eval-reward-key", key, *flags, *self.eval_flags()]

    def loss_flags(self, run: FlagInputs) -> Words:
        """Return the flags of estimator and loss."""
        kl = run.values["kl_loss_coef"]
        return [
            *("--advantage-estimator", "step_wise" if run.judge and not self.group_judge else "grpo"),
            *("--eps-clip", run.values["ppo_clip_ratio"], *self.constants),
            *(["--use-kl-loss", "--kl-loss-coef", kl, "--kl-loss-type", self.kl_type] if kl or self.watches_kl else []),
        ]

    def judge_flags(self, run: FlagInputs) -> Words:
        """Return the flags of the judge of steps."""
        gpus = ["--prm-enable", "--prm-num-gpus", run.counts["prm"], "--prm-num-gpus-per-engine", run.values["prm_tp"]]
        return [
            *(["--prm-sglang-url", self.prm_url] if self.prm_url else gpus),
            *("--prm-model-path", run.values["prm_model_path"] or run.values["hf_ckpt"], "--prm-m", self.prm_m),
            *(
                "--prm-step-coef",
                0 if self.group_judge else self.prm_step_coef,
                "--prm-temperature",
                self.prm_temperature,
            ),
            *("--prm-max-new-tokens", self.prm_max_new_tokens),
        ]

    def _check_group_judge(self, run: FlagInputs, members: int) -> None:
        """Refuse groups that no judge compares."""
        if not 2 <= members <= MOST_MEMBERS:
            raise ConfigError(
                f"GROUP_JUDGE=1 compares 2 to {MOST_MEMBERS} episodes, and N_SAMPLES is {members}; set N_SAMPLES=8"
            )
        named = [
            run.environment.get(RuntimeVariables.declared(field).name) for field in ("judge_class", "judge_base_url")
        ]
        if not (run.judge or any(named)):
            raise ConfigError(
                "GROUP_JUDGE=1 needs a judge; add --step-judge, or set OPENCLAW_JUDGE_BASE_URL and OPENCLAW_JUDGE_MODEL, or "
                "OPENCLAW_JUDGE_CLASS"
            )

    def _plugins(self) -> Words:
        reward = ["--custom-rm-path", self.reward] if self.reward else []
        if self.group_judge:
            reward = ["--group-rm", "--custom-rm-path", GROUP_REWARD]
        generate = ["--custom-generate-function-path", self.generate, *reward]
        return [*generate, *self.columns, "--reward-key", "score", *self.own_flags()]

    def only_evaluation(self, run: FlagInputs) -> Words:
        """Return the flags of an evaluation without a trainer; ``scores.json`` in the run's folder has the result."""
        return [*self._plugins(), *self.evaluation_flags(run.run_dir), "--json", run.run_dir / "scores.json"]

    def start(self, plan: Plan) -> NoReturn:
        """Become the run's first process."""
        environment = {**plan.environment, **({"AGENTRL_POOL_URL": self.server_url} if self.server_url else {})}
        os.execve(plan.command[0], plan.command, environment)

    def write_rows(self, run_dir: Path, *, trains: bool, evaluates: bool) -> list[str]:
        """Write the rows that no variable names; return a line for each file."""
        wanted: list[tuple[Split, str]] = []
        if trains and self.prompt_data is None:
            wanted.append(("train", "train"))
        if evaluates and self.eval_data is None:
            wanted.append(("heldout", "evaluate"))
        return [f"{self.rows(split, self.file(split, run_dir))} tasks to {what} on" for split, what in wanted]


def head_address(values: Mapping[str, Value]) -> str:
    """Return the address at which the other machines reach machine 0: by default this machine's name."""
    return f"{values['master_addr'] or socket.gethostname()}:{values['master_port']}"


@dataclass(frozen=True)
class FoundTask:
    """A task and its folder."""

    folder: Path
    config: type[TaskConfig]

    def variables(self) -> tuple[Variable, ...]:
        """Return the variables that the folder declares or reads, each once."""
        seen: dict[str, Variable] = {}
        for declared in (self.config, *self.config.reads):
            for item in declared.variables():
                seen.setdefault(item.name, item)
        return tuple(seen.values())

    def profile(self, name: str | None, *, judge: bool = False) -> Profile:
        """Return a profile of the task; with ``judge`` the one in which a judge scores each step.

        Raises:
            ConfigError: there is no such profile with a judge.
        """
        profiles = self.config.profiles
        name = name or next(iter(profiles))
        if judge and not name.endswith(JUDGED) and name + JUDGED in profiles:
            name += JUDGED
        if judge and not name.endswith(JUDGED):
            raise ConfigError(f"--step-judge: profile {name} of {self.folder.name} has no judge; leave it out")
        chosen = profiles[name]
        return Profile(name, chosen.device, flags=chosen.flags, gpu_memory_gb=80.0)


def task_file(folder: Path) -> Path:
    """Return the path of a folder's declaration: ``<name>-rl/<name>_task.py``."""
    return folder / f"{folder.name.removesuffix('-rl').replace('-', '_')}_task.py"


def declared_task(folder: Path) -> FoundTask:
    """Return the task that a folder declares.

    Raises:
        ConfigError: it declares none, or its module cannot be imported.
    """
    file = task_file(folder)
    if not file.is_file():
        raise ConfigError(f"{folder} has no {file.name}, which declares a task; name a folder that has one")
    config = getattr(imported(file), TASK_CLASS, None)
    if not (isinstance(config, type) and issubclass(config, TaskConfig)):
        raise ConfigError(f"{file} declares no task: add class {TASK_CLASS}(TaskConfig)")
    return FoundTask(folder, config)


@cache
def task_folders(repository: Path = REPOSITORY) -> tuple[Path, ...]:
    """Return the repository's agent folders."""
    return tuple(folder for folder in sorted(repository.glob("*-rl")) if task_file(folder).is_file())


def find_task(name: str, repository: Path = REPOSITORY) -> FoundTask:
    """Return a task of the repository by name, or another folder's task by path.

    Raises:
        ConfigError: there is neither, or the declaration is unusable.
    """
    names = [folder.name.removesuffix("-rl") for folder in task_folders(repository)]
    if name in names:
        return declared_task(repository / f"{name}-rl")
    folder = next((item for item in (Path(name), repository / name) if item.is_dir()), None)
    if folder is None:
        near = nearest(name, names) or nearest_path(name)
        raise ConfigError(f"--task {name}: use {', '.join(names)}, or the path of an agent folder{near}")
    return declared_task(folder.resolve())
