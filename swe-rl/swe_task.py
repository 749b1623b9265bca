"""What a run on issues is, for ``python -m openclaw.launch --task swe``; the episodes are in `generate_with_swe_remote`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from agentrl.rollout.settings import Settings
from agentrl.sandbox.providers import SandboxSettings, provider
from agentrl.tasks.swe.rows import write_prompts
from agentrl.tasks.swe.source import FOR_EVALUATION, InstanceSource
from groundwork.exceptions import ConfigError
from groundwork.variables import Value
from openclaw.launch.flags import FlagInputs
from openclaw.launch.task import REPOSITORY, EvalSet, Split, TaskConfig, TaskProfile, variable

OF_32B = {"TP": 4, "MAX_TOKENS_PER_GPU": 8192, "MEM_FRACTION_STATIC": 0.55}
OF_8_NODES = {
    **OF_32B,
    **{"NNODES": 8, "NUM_ROLLOUT": 2000, "N_SAMPLES": 8, "CONTEXT_LENGTH": 16384, "SAVE_INTERVAL": 2},
}
RESUMED = "run_swe_rl_32b_remote_8nodes"
"""The run that the profile ``nodes8_32b_resume`` goes on from."""
JUDGE = {"PRM_GPUS": "8", "PRM_TP": 8, "PRM_M": 3, "PRM_MODEL_PATH": "models/Qwen3-4B"}


@dataclass(frozen=True, kw_only=True)
class Task(TaskConfig):
    """Issues: repositories in sandboxes of the trainer's process, unless ``SWE_ENV_SERVER_URL`` names a pool."""

    name = "swe"
    generate = "generate_with_swe_remote.generate"
    reward = "generate_with_swe_remote.reward_func"
    columns = ("--input-key", "text", "--metadata-key", "metadata")
    evaluation = EvalSet("swe", "acc", ("--eval-max-response-len", "4096"))
    constants = ("--eps-clip-high", "0.28", "--entropy-coef", "0", "--num-steps-per-rollout", "1")
    kl_type = "low_var_kl"
    engine_context = 32768
    defaults = {
        **TaskConfig.defaults,
        **{"ROLLOUT_GPUS": "4", "NUM_ROLLOUT": 500, "BATCH_SIZE": 8, "SAVE_INTERVAL": 5},
        **{"MAX_RESPONSE_LENGTH": 4096, "MAX_TOKENS_PER_GPU": 16384, "MEM_FRACTION_STATIC": 0.6},
        "WANDB_PROJECT": "slime_swe",
    }
    profiles = {
        "gpu8": TaskProfile({"SAVE_INTERVAL": 20}),
        "nodes2": TaskProfile({"NNODES": 2}),
        "nodes4_judge": TaskProfile({**JUDGE, "NNODES": 4}),
        "nodes4_32b": TaskProfile({**OF_32B, "NNODES": 4, "NUM_ROLLOUT": 250, "BATCH_SIZE": 4}),
        "nodes8_32b": TaskProfile(OF_8_NODES),
        "nodes8_32b_resume": TaskProfile(OF_8_NODES),
    }
    reads = (InstanceSource, Settings)

    server_url: str | None = variable(
        *("SWE_ENV_SERVER_URL", None, "pool or router that lends the environments"),
        aliases=("ENV_SERVER_URL", "AGENTRL_POOL_URL"),
    )
    samples: int = variable("N_SAMPLES", 4, "episodes of a task", minimum=1)
    context: int = variable("CONTEXT_LENGTH", 32768, "most tokens of a conversation", minimum=1)
    prm_temperature: float = variable("PRM_TEMPERATURE", 1.0, "temperature of the judge", minimum=0.0)
    slots: int = variable(
        *("PARALLEL_ENVS", 8, "most episodes at a time, without a pool of their own"),
        minimum=1,
        aliases=("SWE_MAX_CONCURRENT",),
    )
    seconds: float = variable(
        "SWE_ROLLOUT_TIMEOUT", 1800.0, "seconds of play after which no further turn begins", above=0.0
    )
    sandbox: str = variable(
        "SANDBOX", "bubblewrap", "provider of the sandboxes here", choices=("bubblewrap", "docker", "podman")
    )
    sandbox_image: str | None = variable(
        "SANDBOX_IMAGE", None, "image of docker and podman where an instance names none"
    )
    debug: bool = variable("DEBUG_MODE", False, "two rollouts of two episodes a task")

    @classmethod
    def profile_variables(cls, name: str, environment: Mapping[str, str]) -> Mapping[str, Value]:
        """Return the profile's defaults; one of them is where an earlier run saved."""
        variables = cls.profiles[name].variables
        if not name.endswith("_resume"):
            return variables
        run = environment.get("RUN_DIR") or REPOSITORY / "runs" / (environment.get("RUN_NAME") or RESUMED)
        return {**variables, "RESUME_CKPT": environment.get("SAVE_CKPT") or str(Path(run) / "checkpoints")}

    def check(self, environment: Mapping[str, str], *, trains: bool) -> None:
        """Refuse settings that do not fit, a benchmark that is for evaluation only, and a split without an instance.

        A run that trains on a benchmark for evaluation has no held-out instances.

        Raises:
            ConfigError: says what to set.
        """
        source = InstanceSource.from_env(environment)
        if trains:
            source.check_trainable()
        if trains and self.eval_interval and self.eval_data is None and source.benchmark in FOR_EVALUATION:
            raise ConfigError(
                f"EVAL_INTERVAL={self.eval_interval}: SWE_BENCHMARK={source.benchmark} is trained on, so it measures nothing; set "
                "EVAL_DATA to rows of another benchmark, or unset EVAL_INTERVAL"
            )
        if self.server_url is None:
            try:
                provider(SandboxSettings(self.sandbox, self.sandbox_image), environment)
            except ConfigError as error:
                raise ConfigError(f"SANDBOX={self.sandbox}, SANDBOX_IMAGE: {error}") from error
        if trains and (self.server_url is None or self.prompt_data is None):
            source.ids("train")
        if (self.eval_interval or not trains) and self.eval_data is None:
            source.ids("heldout")

    def summary(self, environment: Mapping[str, str], *, trains: bool) -> Mapping[str, str]:
        """Return where the instances come from, where their environments are, and how long an episode may be."""
        source = InstanceSource.from_env(environment)
        what = source.benchmark or ("generated ones" if source.generated else source.path)
        pool = self.server_url or f"this run with {self.slots} slots, {self.sandbox}"
        lines = {"tasks": f"{what}; environments from {pool}", "episode": f"at most {source.step_limit} commands"}
        if trains and source.benchmark in FOR_EVALUATION:
            lines["caution"] = f"after training on {what} its scores measure nothing; evaluate on another benchmark"
        return lines

    def rows(self, split: Split, file: Path) -> int:
        """Write the rows of a split."""
        source = InstanceSource.from_env()
        return write_prompts(source, source.ids(split), file)

    def sizes(self, run: FlagInputs) -> tuple[object, object, object]:
        """Return the sizes of a rollout; few for a trial."""
        rollouts, tasks, members = super().sizes(run)
        return (2, tasks, 2) if self.debug else (rollouts, tasks, members)

    def eval_flags(self) -> list[object]:
        """Return the bound on a conversation."""
        return ["--eval-max-context-len", self.context]
