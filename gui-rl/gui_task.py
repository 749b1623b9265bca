"""What a run on screen tasks is, for ``python -m openclaw.launch --task gui``; the episodes are in `generate_with_gui`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gui_flags import EVAL_REPLY_TOKENS, EVAL_TEMPERATURE

from agentrl.pool_process import become_trainer_beside_pool
from agentrl.rollout.settings import Settings
from agentrl.tasks.gui.desktop.screen import missing
from agentrl.tasks.gui.osworld.settings import VmSettings
from agentrl.tasks.gui.settings import GuiSettings
from agentrl.tasks.gui.source import GuiSource, write_rows
from openclaw.launch.plan import Plan
from openclaw.launch.task import EvalSet, Split, TaskConfig, TaskProfile, Words, variable


@dataclass(frozen=True, kw_only=True)
class Task(TaskConfig):
    """Screen tasks: a pool of screens beside the trainer, unless ``GUI_ENV_SERVER_URL`` names one."""

    name = "gui"
    generate = "generate_with_gui.generate"
    reward = "generate_with_gui.reward_func"
    columns = ("--input-key", "prompt", "--metadata-key", "metadata")
    evaluation = EvalSet(
        *("gui", "acc"),
        (
            *("--eval-function-path", "generate_with_gui.gui_generate_rollout", "--n-samples-per-eval-prompt", "1"),
            *("--eval-temperature", str(EVAL_TEMPERATURE), "--eval-max-response-len", str(EVAL_REPLY_TOKENS)),
            *("--eval-max-context-len", "16384"),
        ),
    )
    constants = ("--num-steps-per-rollout", "2", "--data-source-path", "gui_data_source.GuiMetaDataSource")
    spread = watches_kl = False
    defaults = {
        **TaskConfig.defaults,
        **{"ROLLOUT_GPUS": "4", "TP": 1, "PRM_TP": 1, "NUM_ROLLOUT": 1000, "BATCH_SIZE": 8, "SAVE_INTERVAL": 10},
        **{"MAX_RESPONSE_LENGTH": 1024, "MAX_TOKENS_PER_GPU": 16384, "MEM_FRACTION_STATIC": 0.8},
        "WANDB_PROJECT": "slime_gui",
    }
    aliases = {**TaskConfig.aliases, "BATCH_SIZE": ("ROLLOUT_BATCH_SIZE",)}
    profiles = {"gpu8": TaskProfile(), "gpu8_judge": TaskProfile({"ROLLOUT_GPUS": "2", "KL_LOSS_COEF": 0.01})}
    reads = (GuiSource, GuiSettings, VmSettings, Settings)

    server_url: str | None = variable(
        *("GUI_ENV_SERVER_URL", None, "pool or router to use instead of one here"),
        aliases=("ENV_SERVER_URL", "AGENTRL_POOL_URL"),
    )
    eval_interval: int | None = variable(
        *("GUI_EVAL_INTERVAL", None, "rollouts between evaluations on held-out tasks; default: none"),
        minimum=1,
        aliases=("EVAL_INTERVAL",),
    )
    samples: int = variable("N_SAMPLES_PER_PROMPT", 8, "episodes of a task", minimum=1, aliases=("N_SAMPLES",))
    slots: int = variable("PARALLEL_ENVS", 16, "most episodes at a time", minimum=1, aliases=("GUI_POOL_MAX_ENVS",))
    max_steps: int = variable(
        *("MAX_GUI_STEPS", 30, "most replies of an episode"),
        minimum=1,
        aliases=("MAX_STEPS", "GUI_MAX_STEPS", "AGENTRL_MAX_TURNS", "MAX_TURNS"),
    )
    pictures: int = variable(
        *("GUI_MAX_IMAGE_HISTORY_LENGTH", 3, "newest pictures that the policy sees"),
        minimum=1,
        aliases=("AGENTRL_KEEP_PICTURES",),
    )
    judge_pictures: int | None = variable(
        "GUI_MAX_REWARD_IMAGE_HISTORY_LENGTH",
        None,
        "pictures before a step that its judge sees; default: 1, or what AGENTRL_JUDGE_PICTURES says",
        minimum=0,
    )

    def check(self, environment: Mapping[str, str], *, trains: bool) -> None:
        """Refuse variables that name no task.

        Raises:
            ConfigError: says what to set.
        """
        source = GuiSource.from_env(environment)
        GuiSettings.from_env(environment)
        if trains:
            source.ids("train")
        if self.eval_interval or not trains:
            source.ids("heldout")

    def summary(self, environment: Mapping[str, str], *, trains: bool) -> Mapping[str, str]:
        """Return which tasks there are, where their screens come from, and what an agent sees and may do."""
        source, seen = GuiSource.from_env(environment), GuiSettings.from_env(environment)
        train = len(source.ids("train")) if trains else 0
        held_out = len(source.ids("heldout")) if self.eval_interval or not trains else 0
        return {
            "tasks": f"{source.name}, {train} to train on, {held_out} to evaluate on",
            "screens": f"from {self.server_url or f'a pool here with {self.slots} slots'}, driven by {source.driver}",
            "episode": f"at most {self.max_steps} replies; {seen.observation}, {seen.coordinates} coordinates",
        }

    def missing_here(self, environment: Mapping[str, str]) -> str | None:
        """Return what a desktop of a pool here lacks."""
        here = self.server_url is None and GuiSource.from_env(environment).name == "desktop"
        return missing() if here else None

    def file(self, split: Split, run_dir: Path) -> Path:
        """Return the file of a split, under the name that the data source writes, too."""
        return run_dir / ("gui_train.jsonl" if split == "train" else "gui_eval.jsonl")

    def rows(self, split: Split, file: Path) -> int:
        """Write the rows of a split."""
        return write_rows(GuiSource.from_env().ids(split), file)

    def own_flags(self) -> Words:
        """Return the flags of `gui_flags`."""
        judged = self.judge_pictures
        return [
            *("--gui-max-steps", self.max_steps, "--gui-max-image-history-length", self.pictures),
            *([] if judged is None else ["--gui-max-reward-image-history-length", judged]),
        ]

    def eval_flags(self) -> Words:
        """Return the bound on replies in an evaluation."""
        return ["--gui-eval-max-steps", self.max_steps]

    def pool(self, run_dir: Path) -> list[str]:
        """Return the arguments of the pool."""
        words = ["--env", GuiSource.from_env().kind.environment, "--slots", str(self.slots)]
        return [*words, "--ledger", str(run_dir / "pool.sqlite")]

    def start(self, plan: Plan) -> NoReturn:
        """Start the pool and the trainer, or the evaluation."""
        run_dir = Path(plan.args.run_dir)
        become_trainer_beside_pool(plan.command, plan.environment, self.server_url, self.pool(run_dir), run_dir)
