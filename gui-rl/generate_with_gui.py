"""``--custom-generate-function-path generate_with_gui.generate``: episodes at a screen as slime's samples.

A row's metadata, or its prompt, names the task. The loop is `agentrl.rollout`. Guarantee: each sample's reward is a dict with
``score`` (what is trained), ``outcome``, ``acc`` (1 if the task was solved, else 0) and ``prm_turn_score`` (mean of the judged
steps, None without any).
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import Any

from gui_flags import GuiConfig, add_custom_arguments

from agentrl.rollout.custom_config import (
    Part,
    given_reward,
    mean_step_score,
    reward_in_parts,
    sample_outcome,
    trained_score,
)
from agentrl.rollout.generate import generate_in
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.rollout.base_types import RolloutFnEvalOutput
from slime.rollout.eval_datasets import load_eval_prompts
from slime.rollout.evaluation import eval_rollout
from slime.utils.async_utils import run
from slime.utils.types import Sample

__all__ = ["add_custom_arguments", "generate", "gui_generate_rollout", "reward_func"]

PARTS: dict[str, Part] = {
    "score": trained_score,
    "outcome": lambda sample: sample_outcome(sample) or 0.0,
    "acc": lambda sample: float((sample_outcome(sample) or 0.0) >= 1),
    "prm_turn_score": mean_step_score,
}
"""A sample's reward."""


async def generate(
    args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Play the episode of a sample; return its samples, or the sample itself, aborted.

    Raises:
        ConfigError: flags, variables, the custom config or the task are wrong.
    """
    settings = GuiConfig.of(args).settings(evaluation)
    result = await generate_in(args, sample, sampling_params, evaluation, settings=settings)
    return reward_in_parts(result, PARTS)


async def reward_func(args: Arguments, sample: Sample | list[Sample], **more: Any) -> Any:
    """Return the reward that `generate` gave a sample, or each of a list: ``--custom-rm-path generate_with_gui.reward_func``.

    Raises:
        ConfigError: the sample is not of `generate`.
    """
    return given_reward(sample, "generate_with_gui.generate")


def gui_generate_rollout(
    args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnEvalOutput:
    """Evaluate, with the success of each domain as a metric: ``--eval-function-path generate_with_gui.gui_generate_rollout``.

    Raises:
        ConfigError: it is asked to train.
    """
    if not evaluation:
        raise ConfigError("gui_generate_rollout evaluates only; use it as --eval-function-path")
    output = run(eval_rollout(args, rollout_id))[0]
    metrics: dict[str, float] = {}
    for dataset in args.eval_datasets:
        domains = [prompt.metadata.get("domain", "all") for prompt in load_eval_prompts(args, dataset)]
        metrics |= by_domain(dataset.name, output.data[dataset.name], domains)
    return RolloutFnEvalOutput(data=output.data, metrics=metrics)


def by_domain(name: str, result: dict[str, list[Any]], domains: list[str]) -> dict[str, float]:
    """Return ``eval/NAME/DOMAIN``, the mean reward of a domain's answers; lost ones do not count."""
    results: dict[str, list[float]] = defaultdict(list)
    for reward, lost, group in zip(result["rewards"], result["aborted"], result["groups"], strict=True):
        if not lost:
            results[domains[group]].append(reward)
    return {f"eval/{name}/{domain}": statistics.fmean(rewards) for domain, rewards in sorted(results.items())}
