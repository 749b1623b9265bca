"""``--custom-generate-function-path generate_with_swe_remote.generate``: episodes on issues as slime's samples.

The row's ``metadata["task_id"]`` names the instance, or the ``instance_id`` of ``metadata["instance"]``, as older rows have it. Without a pool's address the
environments run in this process. Guarantees: each sample's reward is a dict with ``score`` (what is trained), ``acc`` (1 if the issue is resolved),
``outcome`` (1 or -1) and ``step_score`` (mean of the judged steps, None without any). The instance of an older row, which has the solution in
it, is dropped before anything is sampled or recorded.
"""

from __future__ import annotations

import statistics
from contextlib import AbstractAsyncContextManager
from typing import Any

from swe_config import SweConfig, SweVariables

from agentrl.rollout.generate import generate_in
from agentrl.rollout.own_pool import own_pool
from agentrl.rollout.settings import Settings
from agentrl.sandbox.providers import SandboxSettings, provider
from agentrl.service import LeaseService
from agentrl.tasks.swe.environment import SweEnvironment
from agentrl.tasks.swe.source import InstanceSource
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.utils.types import Sample

__all__ = ["generate", "reward_func"]


async def generate(
    args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Play the episode of a sample; return its samples, or the sample itself, aborted.

    Raises:
        ConfigError: flags, variables, the custom config or the row are wrong.
        ConfigError: a variable is invalid.
    """
    variables, steps = SweVariables.from_env(), InstanceSource.from_env().step_limit
    settings = SweConfig.of(args).settings(variables, steps)
    sample.metadata["task_id"] = task_id(sample)

    def lent_here(settings: Settings) -> AbstractAsyncContextManager[LeaseService]:
        return own_pool(args, environment_of(variables), "swe", variables.slots).lend()

    lend = lent_here if settings.pool_url is None else None
    found = await generate_in(args, sample, sampling_params, evaluation, lend=lend, settings=settings)
    for each in found if isinstance(found, list) else ():
        each.reward = reward_of(each)
    return found


async def reward_func(args: Arguments, sample: Sample | list[Sample], **kwargs: Any) -> Any:
    """Return the reward that `generate` gave; a list of them for a list.

    Raises:
        ConfigError: another function made the sample, so nothing has graded it.
    """
    if isinstance(sample, list):
        return [await reward_func(args, each, **kwargs) for each in sample]
    if sample.reward is None:
        raise ConfigError(
            "the sample has no reward; set --custom-generate-function-path generate_with_swe_remote.generate, which grades it"
        )
    return sample.reward


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


def environment_of(variables: SweVariables) -> type[SweEnvironment]:
    """Return the environment with the provider of the variables.

    Raises:
        ConfigError: its settings do not fit.
    """
    try:
        made = provider(SandboxSettings(variables.sandbox, variables.sandbox_image))
    except ConfigError as error:
        raise ConfigError(f"SANDBOX={variables.sandbox}: {error}") from error
    return type("Provided", (SweEnvironment,), {"provider": made})


def reward_of(sample: Sample) -> dict[str, float | None]:
    """Return the reward of a sample of `agentrl.rollout` in its parts."""
    outcome = sample.metadata["agent"]["outcome"]
    judged = [each for each in sample.metadata.get("step_wise", {}).get("step_scores", ()) if each is not None]
    score: Any = sample.reward
    return {
        "score": float(score or 0.0),
        "acc": float(outcome is not None and outcome > 0),
        "outcome": outcome,
        "step_score": statistics.fmean(judged) if judged else None,
    }
