"""Evaluation with the default rollout: every evaluation set is answered by the engines and scored.

Guarantee: evaluation samples never mix with training samples, and every one of them is in the result.
"""

from __future__ import annotations

import asyncio
from argparse import Namespace
from typing import Any

from slime.rollout.base_types import RolloutFnEvalOutput
from slime.rollout.eval_datasets import load_eval_samples
from slime.utils.types import Sample


async def eval_rollout(args: Namespace, rollout_id: int) -> tuple[RolloutFnEvalOutput, list[Any]]:
    """Answer and score every evaluation set; empty without one."""
    data = {}
    for dataset in args.eval_datasets or []:
        data.update(await eval_rollout_single_dataset(args, rollout_id, dataset))
    return RolloutFnEvalOutput(data=data), []


async def eval_rollout_single_dataset(args: Namespace, rollout_id: int, cfg: Any) -> dict[str, dict[str, Any]]:
    """Answer and score one evaluation set: ``{name: {"rewards", "truncated", "samples"}}``."""
    from slime.rollout import sglang_rollout  # it re-exports this module

    state = sglang_rollout.GenerateState(args)
    state.aborted = False
    samples, sampling_params = load_eval_samples(args, cfg, state.sampling_params)
    answered = await asyncio.gather(
        *(sglang_rollout.generate_and_rm(args, sample, dict(sampling_params), evaluation=True) for sample in samples)
    )
    flat = [one for answer in answered for one in (answer if isinstance(answer, list) else [answer])]
    key = args.eval_reward_key or args.reward_key
    rewards = [one.reward[key] if isinstance(one.reward, dict) else one.reward for one in flat]
    truncated = [one.status == Sample.Status.TRUNCATED for one in flat]
    return {cfg["name"]: {"rewards": rewards, "truncated": truncated, "samples": flat}}
