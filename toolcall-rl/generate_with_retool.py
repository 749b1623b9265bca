"""``generate`` and ``reward_func`` of tool tasks, under their names in launch scripts.

Without ``AGENTRL_POOL_URL`` the environments run in this process. A row then needs only a question and its label: they become a task of the data set
`agentrl.tasks.toolcall.rows`. A row whose metadata names a task, such as ``toolcall/chain/train/7``, plays that one.

Guarantees: the label never enters the model's prompt or a sandbox. Rewards are 1 and -1. With ``TOOLCALL_WRONG_SHAPING`` a wrong episode's outcome
is `wrong_shaping`, which pays for calls; it is off by default, because useless calls are paid as well.
"""

from __future__ import annotations

import asyncio
import hashlib
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import Any

from toolcall_task import Task

from agentrl.environment import Task as PlayedTask
from agentrl.protocol import LeaseService
from agentrl.rollout.episode import Result
from agentrl.rollout.generate import agents_of, generate_in, service_of
from agentrl.rollout.own_pool import OwnPool, own_pool
from agentrl.rollout.settings import Settings
from agentrl.tasks.toolcall.environment import ToolCallEnvironment, weight_of
from agentrl.tasks.toolcall.grading import answer_of
from agentrl.tasks.toolcall.rows import data_of, draft_of
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.rollout.rm_hub.math_dapo_utils import compute_score
from slime.utils.types import Sample

__all__ = ["generate", "reward_func", "wrong_shaping"]

MIN_OF_WRONG = -0.6


def wrong_shaping(calls: int, coefficient: float) -> float:
    """Return the outcome of a wrong episode: -1 without the coefficient, otherwise ``min(-0.6, -1 + c (calls - 2) / 20)``."""
    return min(MIN_OF_WRONG, -1.0 + coefficient * (calls - 2) / 20) if coefficient else -1.0


async def generate(
    args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample | list[Sample]:
    """Play an episode; return its training samples, or the sample itself, aborted.

    Raises:
        ConfigError: flags, variables or the row are wrong.
        ConfigError: a variable is invalid.
    """
    if args.apply_chat_template:
        raise ConfigError("the agent loop renders prompts itself; remove --apply-chat-template")
    task = Task.from_env()
    if Settings.from_env().pool_url is None:
        pool = own_pool(args, ToolCallEnvironment, "toolcall", task.slots)
        if "task_id" not in sample.metadata:
            sample.metadata["task_id"] = _task_of(sample, pool)

        def lend(settings: Settings) -> AbstractAsyncContextManager[LeaseService]:
            return pool.lend()
    else:
        lend = service_of

    def judged(result: Result) -> Result:
        wrong = result.outcome is not None and result.outcome < 0
        return replace(result, outcome=wrong_shaping(result.counts["calls"], task.wrong_shaping)) if wrong else result

    samples = await generate_in(args, sample, sampling_params, evaluation, lend=lend, judged=judged)
    if isinstance(samples, list):
        answer = answer_of(_said(args, samples[-1]))
        for item in samples:
            item.reward = _reward(item.reward, item.metadata["agent"]["outcome"], answer)
    return samples


async def reward_func(args: Arguments, sample: Sample | list[Sample], **kwargs: Any) -> Any:
    """Return ``{"score", "acc", "pred"}`` of a reply that another generate function made; a list of them for a list.

    The last ``\\boxed{}`` of the response is compared with the label. A sample that has a reward keeps it.
    """
    if isinstance(sample, list):
        return [await reward_func(args, item, **kwargs) for item in sample]
    if sample.reward is not None:
        return sample.reward
    found = await asyncio.to_thread(compute_score, sample.response, str(sample.label), strict_box_verify=True)
    if found["score"] < 0:
        calls = sample.metadata.get("agent", {}).get("calls", 0)
        found["score"] = wrong_shaping(calls, Task.from_env().wrong_shaping)
    return found


def _said(args: Arguments, sample: Sample) -> str:
    """Return what the policy itself wrote of a sample."""
    response = sample.tokens[len(sample.tokens) - sample.response_length :]
    ids = [item for item, sampled in zip(response, sample.loss_mask or (), strict=False) if sampled]
    return agents_of(args).codec.text(ids)


def _reward(score: Any, outcome: float | None, answer: str | None) -> dict[str, Any]:
    return {"score": score, "acc": outcome is not None and outcome > 0, "pred": answer}


def _task_of(sample: Sample, pool: OwnPool) -> str:
    """Return the name of the sample's task; a question of a data set is offered under a name of its own."""
    row = {"prompt": sample.prompt, "label": sample.label, "metadata": sample.metadata}
    try:
        data = data_of(row, f"row of sample {sample.index}")
    except ConfigError as error:
        raise ConfigError(f"{error}; or name a task with a task_id in its metadata") from error
    name = f"toolcall/rows/{hashlib.sha256(repr(sorted(data.items())).encode()).hexdigest()[:24]}"
    config = ToolCallEnvironment.config()
    pool.registry.add(PlayedTask(name, data, weight_of(config, draft_of(data, config.builtin).tools)))
    return name
