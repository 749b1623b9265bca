"""``--custom-generate-function-path generate.generate``: terminal episodes as slime's samples.

The prompt is a task (``--input-key task``) or its name. The loop is `agentrl.rollout`. Guarantee: each sample's reward is a dict with
``score`` (what is trained), ``base_score`` (outcome), ``raw_score`` and ``accuracy`` (share of passed tests), ``prm_turn_score`` (mean of the
judged steps, None without any).
"""

from __future__ import annotations

import statistics
from typing import Any

from terminal_config import TerminalConfig

from agentrl.rollout.generate import generate_in
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.utils.types import Sample


async def generate(
    args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Play the episode of a sample; return its samples, or the sample itself, aborted.

    Raises:
        ConfigError: flags, variables, the custom config or the task are wrong.
    """
    config = TerminalConfig.of(args)
    settings = config.settings()
    sample.metadata.setdefault("task_id", task_id(sample))
    found = await generate_in(config.arguments(args), sample, sampling_params, evaluation, settings=settings)
    if isinstance(found, list):
        for each in found:
            each.reward = reward_of(each, settings.reward)
    return found


def task_id(sample: Sample) -> str:
    """Return the task that a sample names: its ``task_path``, or the prompt itself.

    Raises:
        ConfigError: it names none.
    """
    prompt: Any = sample.prompt
    named = prompt.get("task_path") or prompt.get("task_name") if isinstance(prompt, dict) else prompt
    if not isinstance(named, str) or not named:
        raise ConfigError("the prompt names no task; give its row a task with a task_path, and --input-key task")
    return named


def reward_of(sample: Sample, mode: str) -> dict[str, float | None]:
    """Return the reward of a sample of `agentrl.rollout` in its parts."""
    outcome = sample.metadata["agent"]["outcome"]
    base = 0.0 if outcome is None else outcome
    accuracy = base if mode == "raw" else (base + 1) / 2 if outcome is not None else 0.0
    scores = [each for each in sample.metadata.get("step_wise", {}).get("step_scores", ()) if each is not None]
    return {
        "accuracy": accuracy,
        "raw_score": accuracy,
        "base_score": base,
        "score": float(sample.reward or 0.0),
        "prm_turn_score": statistics.fmean(scores) if scores else None,
    }
