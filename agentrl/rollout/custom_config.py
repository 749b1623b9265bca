"""What an agent folder's generate function adds to the loop: settings from the run's arguments, and rewards in parts.

Guarantees: a value that the model refuses is an error that names it. What a run decides about an episode wins over the variables of
`agentrl.rollout.settings`, and these win over a plugin's defaults.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError

from agentrl.rollout.settings import Settings
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.utils.types import Sample


class CustomConfig(BaseModel):
    """What ``--custom-config-path`` may say to a plugin: attributes of the run's arguments; a subclass declares them."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    @classmethod
    def of(cls, args: Arguments) -> Self:
        """Return what the run's arguments say.

        Raises:
            ConfigError: a value is unusable.
        """
        given = vars(args)
        try:
            return cls.model_validate({name: given[name] for name in cls.model_fields if name in given})
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
            raise ConfigError(f"--custom-config-path {args.custom_config_path}: {problems}") from None


def episode_settings(
    usual: Mapping[str, Any], decided: Mapping[str, Any], environment: Mapping[str, str] = os.environ
) -> Settings:
    """Return the settings of an episode.

    Args:
        usual: the plugin's defaults, by field; each holds unless the field's variable is set.
        decided: what the run's flags or file say, by field.
        environment: the process's variables.

    Raises:
        ConfigError: a variable is invalid.
    """
    free = {field: value for field, value in usual.items() if not environment.get(Settings.declared(field).name)}
    return replace(Settings.from_env(environment), **{**free, **decided})


Part = Callable[[Sample], float | None]
"""One entry of a sample's reward, from what `agentrl.rollout.episode` noted on it."""


def trained_score(sample: Sample) -> float:
    """Return the reward that is trained: outcome and judged steps together."""
    score: Any = sample.reward
    return float(score or 0.0)


def sample_outcome(sample: Sample) -> float | None:
    """Return the outcome of the sample's episode."""
    return sample.metadata["agent"]["outcome"]


def mean_step_score(sample: Sample) -> float | None:
    """Return the mean score of the judged steps; None without one."""
    scores = [
        step_score
        for step_score in sample.metadata.get("step_wise", {}).get("step_scores", ())
        if step_score is not None
    ]
    return statistics.fmean(scores) if scores else None


def reward_in_parts(found: Sample | list[Sample], parts: dict[str, Part]) -> Sample | list[Sample]:
    """Give each sample of a finished episode its reward as a dict, with an entry for each part; return the samples."""
    for sample in found if isinstance(found, list) else ():
        reward: Any = {name: part(sample) for name, part in parts.items()}
        sample.reward = reward
    return found


def given_reward(sample: Sample | list[Sample], generate: str) -> Any:
    """Return the reward that a generate function gave a sample, or each of a list.

    Raises:
        ConfigError: another function made the sample.
    """
    if isinstance(sample, list):
        return [given_reward(item, generate) for item in sample]
    if sample.reward is None:
        raise ConfigError(f"the sample has no reward; set --custom-generate-function-path {generate}, which gives it")
    return sample.reward
