"""What a run on tool tasks is, for ``python -m openclaw.launch --task toolcall``; the episodes are in `generate_with_retool`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.rollout.settings import Settings
from agentrl.tasks.toolcall.environment import ToolCallEnvironment, offered
from agentrl.tasks.toolcall.generate import task_name
from agentrl.tasks.toolcall.settings import ToolSettings
from groundwork.exceptions import ConfigError
from groundwork.variables import Value
from openclaw.launch.flags import FlagInputs
from openclaw.launch.task import REPOSITORY, EvalSet, Split, TaskConfig, TaskProfile, Words, variable

TOOLS = Path(__file__).resolve().with_name("tools_config.json")
TASKS_OF_FAMILY = {"train": 200, "heldout": 50}
USUAL_INTERVAL = 20
OF_4B = {"HF_CKPT": "models/Qwen3-4B-Instruct-2507", "MODEL_ARGS_ROTARY_BASE": 5e6}
STEPS_OF_4B = ("--num-steps-per-rollout", "2")
DATA = {"PROMPT_DATA": str(REPOSITORY / "data" / "dapo-math-17k.jsonl")}
RETOOL_4B: Mapping[str, Value] = {**OF_4B, **DATA}
RETOOL_32B: Mapping[str, Value] = {
    **DATA,
    **{"HF_CKPT": "models/ReTool-DeepSeek-R1-Distill-Qwen-32B-SFT", "NNODES": 4, "TP": 4, "KL_LOSS_COEF": 0.0},
    **{"MAX_TOKENS_PER_GPU": 8192, "MEM_FRACTION_STATIC": 0.8, "SAVE_INTERVAL": 40},
}
FLAGS_OF_32B = ("--norm-epsilon", "1e-6", "--kl-loss-type", "low_var_kl", "--global-batch-size", "256")
SFT = "gpu8_sft"
FLAGS_OF_SFT = (
    *("--debug-train-only", "--rollout-function-path", "slime.rollout.sft_rollout.generate_rollout"),
    *("--input-key", "messages", "--tool-key", "tools", "--rollout-shuffle", "--loss-mask-type", "qwen3"),
    *("--num-epoch", "3", "--global-batch-size", "128", "--loss-type", "sft_loss", "--calculate-per-token-loss"),
    *("--disable-compute-advantages-and-returns", "--lr-decay-style", "cosine", "--min-lr", "1e-6"),
    *("--lr-warmup-fraction", "0.1", "--adam-beta2", "0.95"),
)


@dataclass(frozen=True, kw_only=True)
class Task(TaskConfig):
    """Tool tasks, generated or of ``PROMPT_DATA``; the tools are those of ``TOOLS_CONFIG``."""

    name = "toolcall"
    generate = "generate_with_retool.generate"
    reward = "generate_with_retool.reward_func"
    columns = ("--input-key", "prompt", "--label-key", "label")
    evaluation = EvalSet(
        *("aime", "acc"),
        (
            *("--n-samples-per-eval-prompt", "16", "--eval-max-response-len", "16384"),
            *("--eval-max-context-len", "32768", "--eval-top-p", "1"),
        ),
    )
    constants = ("--eps-clip-high", "0.28", "--entropy-coef", "0")
    engine_context = 32768
    defaults = {
        **TaskConfig.defaults,
        **{"ROLLOUT_GPUS": "4", "NUM_ROLLOUT": 3000, "BATCH_SIZE": 32, "SAVE_INTERVAL": 20, "KL_LOSS_COEF": 0.01},
        **{"MAX_TOKENS_PER_GPU": 16384, "MEM_FRACTION_STATIC": 0.6, "WANDB_PROJECT": "slime_retool"},
    }
    aliases = {**TaskConfig.aliases, "TP": (*TaskConfig.aliases["TP"], "SGLANG_GPUS_PER_ENGINE")}
    profiles = {
        "gpu8": TaskProfile({**OF_4B, "PARALLEL_ENVS": 64, "TOOLS_CONFIG": str(TOOLS)}, STEPS_OF_4B),
        "gpu8_retool": TaskProfile(RETOOL_4B, STEPS_OF_4B),
        "gpu8_retool_judge": TaskProfile({**RETOOL_4B, "ACTOR_GPUS": "2"}, STEPS_OF_4B),
        "nodes4_32b": TaskProfile(RETOOL_32B, FLAGS_OF_32B),
        "nodes4_32b_judge": TaskProfile(
            {
                **RETOOL_32B,
                **{"PRM_GPUS": "8", "PRM_TP": 8, "PRM_M": 3, "PRM_TEMPERATURE": 1.0, "PRM_MAX_NEW_TOKENS": 2048},
            },
            FLAGS_OF_32B,
        ),
        SFT: TaskProfile(
            {
                **{**OF_4B, "PROMPT_DATA": str(REPOSITORY / "data" / "retool-sft.jsonl"), "BATCH_SIZE": 128},
                **{"ACTOR_GPUS": "8", "ROLLOUT_GPUS": "0", "LEARNING_RATE": 1e-5, "SAVE_INTERVAL": 1000},
                **{"MAX_TOKENS_PER_GPU": 9216, "MEM_FRACTION_STATIC": 0.8},
            },
            FLAGS_OF_SFT,
        ),
    }
    reads = (ToolSettings, Settings)

    server_url: str | None = variable("AGENTRL_POOL_URL", None, "pool or router that lends the environments")
    rotary_base: float | None = variable("MODEL_ARGS_ROTARY_BASE", None, "RoPE theta of the model's shape")
    slots: int = variable("PARALLEL_ENVS", 32, "episodes at a time, without a pool of their own", minimum=1)
    wrong_shaping: float = variable(
        "TOOLCALL_WRONG_SHAPING", 0.0, "how much a wrong episode's outcome rises with its calls", minimum=0.0
    )

    def check(self, environment: Mapping[str, str], *, trains: bool) -> None:
        """Refuse a configuration of tools that is not there.

        Raises:
            ConfigError: names it.
        """
        config = ToolSettings.from_env(environment).tools_config
        if config and not Path(config).is_file():
            raise ConfigError(f"TOOLS_CONFIG={config}: no such file; see {TOOLS}")

    def summary(self, environment: Mapping[str, str], *, trains: bool) -> Mapping[str, str]:
        """Return where tasks, tools and environments come from, and how long an episode may be."""
        tools, steps = ToolSettings.from_env(environment).tools_config, Settings.from_env(environment).max_turns
        pool = self.server_url or f"this run with {self.slots} slots"
        return {
            "tasks": f"{self.prompt_data or 'generated'}; environments from {pool}",
            "tools": tools or "all that are built in",
            "episode": f"at most {steps} replies",
        }

    @property
    def interval(self) -> int | None:
        """Rollouts between evaluations, where there are rows for them."""
        return self.eval_interval or (USUAL_INTERVAL if self.eval_data else None)

    def rows(self, split: Split, file: Path) -> int:
        """Write the rows of generated tasks: those that the tools of ``TOOLS_CONFIG`` suffice for."""
        families = offered(ToolCallEnvironment.config(), split)
        names = [task_name(family, split, number) for family in families for number in range(TASKS_OF_FAMILY[split])]
        rows = [{"prompt": name, "label": "", "metadata": {"task_id": name}} for name in names]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return len(rows)

    def for_processes(self, environment: Mapping[str, str]) -> Mapping[str, str]:
        """Return the configuration of tools with its whole path, for processes that work elsewhere."""
        config = ToolSettings.from_env(environment).tools_config
        return {"TOOLS_CONFIG": str(Path(config).absolute())} if config else {}

    def rollout_flags(self, run: FlagInputs) -> Words:
        """Return the flags of a rollout; a supervised start has rows, and no episodes."""
        shape = [] if self.rotary_base is None else ["--rotary-base", self.rotary_base]
        if run.profile.name != SFT:
            return [*shape, *super().rollout_flags(run)]
        return [*shape, "--prompt-data", self.prompt_data, "--rollout-batch-size", run.values["batch_size"]]

    def loss_flags(self, run: FlagInputs) -> Words:
        """Return the flags of the loss; those of a supervised start are its profile's."""
        return [] if run.profile.name == SFT else super().loss_flags(run)
