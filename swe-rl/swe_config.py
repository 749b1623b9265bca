"""What ``--custom-config-path`` may say about episodes on issues, with the documented defaults.

A variable of `agentrl.rollout.settings` that is set wins over a default here, and the file wins over both. Guarantee: a value that would change nothing
is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from pydantic import Field, model_validator

from agentrl.rollout.custom_config import CustomConfig
from agentrl.rollout.settings import Settings
from groundwork.variables import EnvironmentConfig, variable

SPARE_REPLIES = 10
"""Replies beyond the commands of an episode: those that cannot be read, and the last one."""
Characters = Annotated[int, Field(ge=100)]


@dataclass(frozen=True, kw_only=True)
class SweVariables(EnvironmentConfig):
    """Values of the variables of this folder; see their help."""

    slots: int = variable(
        "PARALLEL_ENVS",
        8,
        "most episodes at a time, without a pool of their own",
        minimum=1,
        aliases=("SWE_MAX_CONCURRENT",),
    )
    server_url: str | None = variable(
        "SWE_ENV_SERVER_URL",
        None,
        "pool or router that lends the environments",
        aliases=("ENV_SERVER_URL", "AGENTRL_POOL_URL"),
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


class SweConfig(CustomConfig):
    """Attributes of the run's arguments that episodes on issues read.

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

    def settings(self, variables: SweVariables, steps: int, environment: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings of an episode of at most ``steps`` commands."""
        read = Settings.from_env(environment)
        own: dict[str, tuple[str, str | None, Any]] = {
            "AGENTRL_JUDGE_STEPS": ("judge_steps", "swe_prm_max_history_steps", self.swe_prm_max_history_steps),
            "AGENTRL_JUDGE_GOAL": ("judge_goal", "swe_prm_max_problem_len", self.swe_prm_max_problem_len),
            "AGENTRL_JUDGE_OUTPUT": ("judge_output", "swe_prm_max_output_len", self.swe_prm_max_output_len),
            "AGENTRL_JUDGE_PAST": ("judge_past", "swe_prm_max_history_output_len", self.swe_prm_max_history_output_len),
            "AGENTRL_JUDGE_LAST": ("judge_last", "swe_prm_skip_submit", not self.swe_prm_skip_submit),
            "AGENTRL_CONTEXT_OLDEST": ("context_oldest", "swe_cm_head_ratio", self.swe_cm_head_ratio),
            "AGENTRL_CONTEXT": ("context", None, "drop_middle"),
            "AGENTRL_MAX_TURNS": ("max_turns", None, steps + SPARE_REPLIES),
            "AGENTRL_EPISODE_SECONDS": ("episode_seconds", None, variables.seconds),
            "AGENTRL_POOL_URL": ("pool_url", None, variables.server_url),
        }
        changes = {
            field: value
            for name, (field, attribute, value) in own.items()
            if not environment.get(name) or attribute in self.model_fields_set
        }
        return replace(read, **changes)
