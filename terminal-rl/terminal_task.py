"""What a run on terminal tasks is, for ``python -m openclaw.launch --task terminal``; the episodes are in `generate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from agentrl.pool_process import become_trainer_beside_pool
from agentrl.rollout.settings import Settings
from agentrl.tasks.terminal.prompts import write_rows
from agentrl.tasks.terminal.source import TaskSource
from groundwork.exceptions import ConfigError
from groundwork.variables import Value, refuse_set
from openclaw.launch.plan import Plan
from openclaw.launch.task import EvalSet, Split, TaskConfig, TaskProfile, variable

ENVIRONMENT = "agentrl.tasks.terminal.environment.TerminalEnvironment"
AGAIN = "a call whose connection is cut is sent again until its deadline, and runs once"
OLDER: Mapping[str, str] = {
    "ENV_HTTP_MAX_RETRIES": AGAIN,
    "ENV_EXEC_TOOL_MAX_RETRIES": AGAIN,
    "ENV_EVALUATE_MAX_RETRIES": "AGENTRL_TRIES says how often a lost episode is tried",
    "ENV_ALLOCATE_MAX_RETRIES": "AGENTRL_WAIT_SECONDS says how long an episode waits for an environment",
    "ENV_CLOSE_MAX_RETRIES": "it is said in the file of --custom-config-path, as close_session_timeout",
}
"""Variables of older trainers that are refused, each with what to use instead."""


@dataclass(frozen=True, kw_only=True)
class Task(TaskConfig):
    """Terminal tasks: a pool of sandboxes beside the trainer, unless ``ENV_SERVER_URL`` names one."""

    name = "terminal"
    generate = "generate.generate"
    columns = ("--input-key", "task", "--metadata-key", "metadata")
    evaluation = EvalSet(
        "terminal", "accuracy", ("--eval-max-context-len", "32768", "--eval-max-response-len", "16384")
    )
    constants = ("--num-steps-per-rollout", "2", "--custom-rollout-log-function-path", "rollout_log.rollout_log")
    spread = False
    defaults = {
        **TaskConfig.defaults,
        **{"ROLLOUT_GPUS": "4", "PRM_GPUS": "8", "PRM_TP": 1, "NUM_ROLLOUT": 2000, "BATCH_SIZE": 16},
        **{"SAVE_INTERVAL": 3, "KL_LOSS_COEF": 0.01, "MAX_TOKENS_PER_GPU": 16384, "MEM_FRACTION_STATIC": 0.6},
        "WANDB_PROJECT": "slime",
    }
    aliases = {
        **TaskConfig.aliases,
        "NODE_RANK": ("MLP_ROLE_INDEX",),
        "NUM_GPUS": ("NUM_GPUS_PER_NODE",),
        "ROLLOUT_GPUS": (*TaskConfig.aliases["ROLLOUT_GPUS"], "ROLLOUT_GPUS_TOTAL"),
        "PRM_GPUS": ("PRM_GPUS_TOTAL",),
        "HF_CKPT": ("MODEL_CKPT",),
    }
    profiles = {"gpu8": TaskProfile(), "gpu8_judge": TaskProfile({"NNODES": 2})}
    reads = (TaskSource, Settings)

    server_url: str | None = variable(
        "ENV_SERVER_URL", None, "pool or router to use instead of one here", aliases=("AGENTRL_POOL_URL",)
    )
    prompt_data: str | None = variable(
        *("ROLLOUT_PROMPT_DATA", None, "rows of tasks; default: written for TASK_TYPE"), aliases=("PROMPT_DATA",)
    )
    eval_data: str | None = variable(
        *("EVAL_PROMPT_DATA", None, "rows of tasks for evaluation; default: held-out ones"), aliases=("EVAL_DATA",)
    )
    prm_temperature: float = variable("PRM_TEMPERATURE", 0.0, "temperature of the judge", minimum=0.0)
    slots: int = variable("PARALLEL_ENVS", 32, "most episodes at a time", minimum=1)
    max_steps: int | None = variable(
        *("MAX_STEPS", None, "most replies of an episode; default: max_iteration"), minimum=1, aliases=("MAX_TURNS",)
    )
    sandbox: str = variable(
        "SANDBOX", "bubblewrap", "provider of a pool here", choices=("bubblewrap", "docker", "podman")
    )
    sandbox_image: str | None = variable("SANDBOX_IMAGE", None, "image of docker and podman where a task names none")

    @classmethod
    def profile_variables(cls, name: str, environment: Mapping[str, str]) -> Mapping[str, Value]:
        """Return the profile's defaults; a judge that runs already needs no machine of its own."""
        return {} if environment.get("PRM_SGLANG_URL") else cls.profiles[name].variables

    def check(self, environment: Mapping[str, str], *, trains: bool) -> None:
        """Refuse variables of older set-ups, and an evaluation on the tasks that are trained on.

        Raises:
            ConfigError: says what to set.
        """
        refuse_set(OLDER, environment)
        source = TaskSource.from_env(environment)
        if self.eval_interval and self.eval_data is None and not source.has_splits:
            raise ConfigError(
                f"EVAL_INTERVAL={self.eval_interval}: TASK_TYPE={source.task_type} has no held-out tasks; set EVAL_PROMPT_DATA "
                "to rows of tasks that are not trained on, such as test.jsonl of convert_task_to_dataset.py, and "
                "ROLLOUT_PROMPT_DATA to train.jsonl"
            )

    def summary(self, environment: Mapping[str, str], *, trains: bool) -> Mapping[str, str]:
        """Return which tasks there are, where their environments come from, and how long an episode may be."""
        source = TaskSource.from_env(environment)
        pool = self.server_url or f"a pool here with {self.slots} slots, {self.sandbox}"
        steps, origin = Settings.declared("max_turns").read(environment)
        episode = f"at most {steps} replies" if origin != "default" else "at most max_iteration replies, by default 10"
        return {"tasks": f"{source.task_type}, {len(source.ids())}; environments from {pool}", "episode": episode}

    def rows(self, split: Split, file: Path) -> int:
        """Write the rows of a split."""
        source = TaskSource.from_env()
        return write_rows(source, source.ids(split), file)

    def pool(self, run_dir: Path) -> list[str]:
        """Return the arguments of the pool."""
        words = ["--env", ENVIRONMENT, "--slots", str(self.slots), "--sandbox", self.sandbox]
        words += ["--sandbox-image", self.sandbox_image] if self.sandbox_image else []
        return [*words, "--ledger", str(run_dir / "pool.sqlite")]

    def for_processes(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Return the bound on replies, under the name that the loop reads."""
        return {} if self.max_steps is None else {"AGENTRL_MAX_TURNS": str(self.max_steps)}

    def start(self, plan: Plan) -> NoReturn:
        """Start the pool and the trainer."""
        run_dir = Path(plan.args.run_dir)
        become_trainer_beside_pool(plan.command, plan.environment, self.server_url, self.pool(run_dir), run_dir)
