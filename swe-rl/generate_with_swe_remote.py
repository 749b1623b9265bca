"""``--custom-generate-function-path generate_with_swe_remote.generate``: episodes on issues as slime's samples.

The row's ``metadata["task_id"]`` names the instance, or the ``instance_id`` of ``metadata["instance"]``, as older rows have it. Without a pool's address the
environments run in this process. Guarantees: each sample's reward is a dict with ``score`` (what is trained), ``acc`` (1 if the issue is resolved),
``outcome`` (1 or -1) and ``step_score`` (mean of the judged steps, None without any). The instance of an older row, which has the solution in
it, is dropped before anything is sampled or recorded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import Annotated, Any

from pydantic import Field, model_validator
from swe_task import Task

from agentrl.protocol import LeaseService
from agentrl.rollout.custom_config import (
    CustomConfig,
    Part,
    episode_settings,
    given_reward,
    mean_step_score,
    reward_in_parts,
    sample_outcome,
    trained_score,
)
from agentrl.rollout.generate import generate_in
from agentrl.rollout.own_pool import own_pool
from agentrl.rollout.settings import Settings
from agentrl.sandbox.providers import SandboxSettings, provider
from agentrl.tasks.swe.environment import SweEnvironment
from agentrl.tasks.swe.source import InstanceSource
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.utils.types import Sample

__all__ = ["generate", "reward_func"]


SPARE_REPLIES = 10
"""Replies beyond the commands of an episode: those that cannot be read, and the last one."""
Characters = Annotated[int, Field(ge=100)]
PARTS: dict[str, Part] = {
    "score": trained_score,
    "acc": lambda sample: float((sample_outcome(sample) or 0.0) > 0),
    "outcome": sample_outcome,
    "step_score": mean_step_score,
}
"""A sample's reward."""


class SweConfig(CustomConfig):
    """What ``--custom-config-path`` may say about episodes on issues.

    Attributes:
        swe_prm_max_history_steps: newest steps that the judge sees.
        swe_prm_max_problem_len: most characters of the issue that it sees.
        swe_prm_max_output_len: most characters of a step's output.
        swe_prm_max_history_output_len: most characters of an earlier message.
        swe_prm_skip_submit: whether the step that submits is not judged.
        swe_cm_head_ratio: of the steps that a cut conversation keeps, the share of the oldest.
    """

    swe_prm_max_history_steps: Annotated[int, Field(ge=0)] = 8
    swe_prm_max_problem_len: Characters = 8000
    swe_prm_max_output_len: Characters = 4000
    swe_prm_max_history_output_len: Characters = 1000
    swe_prm_skip_submit: bool = True
    swe_cm_head_ratio: Annotated[float, Field(ge=0, le=1)] = 0.3
    prm_max_concurrency: None = None

    @model_validator(mode="before")
    @classmethod
    def _no_concurrency(cls, given: Any) -> Any:
        if given.get("prm_max_concurrency") is not None:
            raise ValueError("prm_max_concurrency has no effect: 16 steps are judged at a time; remove it")
        return given

    def settings(self, task: Task, steps: int, environment: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings of an episode of at most ``steps`` commands."""
        fields = {
            "judge_steps": ("swe_prm_max_history_steps", self.swe_prm_max_history_steps),
            "judge_goal": ("swe_prm_max_problem_len", self.swe_prm_max_problem_len),
            "judge_output": ("swe_prm_max_output_len", self.swe_prm_max_output_len),
            "judge_past": ("swe_prm_max_history_output_len", self.swe_prm_max_history_output_len),
            "judge_last": ("swe_prm_skip_submit", not self.swe_prm_skip_submit),
            "context_oldest": ("swe_cm_head_ratio", self.swe_cm_head_ratio),
        }
        usual = {
            **{field: value for field, (_, value) in fields.items()},
            "context": "drop_middle",
            "max_turns": steps + SPARE_REPLIES,
            "episode_seconds": task.seconds,
            "pool_url": task.server_url,
        }
        decided = {field: value for field, (name, value) in fields.items() if name in self.model_fields_set}
        return episode_settings(usual, decided, environment)


async def generate(
    args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Play the episode of a sample; return its samples, or the sample itself, aborted.

    Raises:
        ConfigError: flags, variables, the custom config or the row are wrong.
        ConfigError: a variable is invalid.
    """
    task, steps = Task.from_env(), InstanceSource.from_env().step_limit
    settings = SweConfig.of(args).settings(task, steps)
    sample.metadata["task_id"] = task_id(sample)

    def lent_here(settings: Settings) -> AbstractAsyncContextManager[LeaseService]:
        return own_pool(args, environment_of(task), "swe", task.slots).lend()

    lend = lent_here if settings.pool_url is None else None
    found = await generate_in(args, sample, sampling_params, evaluation, lend=lend, settings=settings)
    return reward_in_parts(found, PARTS)


async def reward_func(args: Arguments, sample: Sample | list[Sample], **kwargs: Any) -> Any:
    """Return the reward that `generate` gave; a list of them for a list.

    Raises:
        ConfigError: another function made the sample, so nothing has graded it.
    """
    return given_reward(sample, "generate_with_swe_remote.generate")


def task_id(sample: Sample) -> str:
    """Return the instance that a sample names, and drop everything else that its row says of it.

    Raises:
        ConfigError: it names none.
    """
    row = sample.metadata.pop("instance", None)
    named = sample.metadata.get("task_id") or sample.metadata.get("instance_id")
    if named is None and isinstance(row, dict):
        named = row.get("instance_id")
    if not isinstance(named, str) or not named:
        raise ConfigError("the row names no instance; give its metadata a task_id, and --metadata-key metadata")
    return named


def environment_of(task: Task) -> type[SweEnvironment]:
    """Return the environment with the provider of the variables.

    Raises:
        ConfigError: its settings do not fit.
    """
    try:
        made = provider(SandboxSettings(task.sandbox, task.sandbox_image))
    except ConfigError as error:
        raise ConfigError(f"SANDBOX={task.sandbox}: {error}") from error
    return type("Provided", (SweEnvironment,), {"provider": made})
