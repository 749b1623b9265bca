"""Rollout function of the example: generates batches of groups until enough pass the filter."""

from __future__ import annotations

import asyncio

from slime.rollout.base_types import RolloutFnTrainOutput
from slime.rollout.sglang_rollout import GenerateState, eval_rollout, generate_and_rm
from slime.utils.async_utils import run
from slime.utils.misc import load_function

MAX_ROUNDS = 20


def generate_rollout(args, rollout_id, data_source, evaluation=False):
    """Return ``--rollout-batch-size`` groups and the number of dropped ones; the core evaluates."""
    if evaluation:
        return run(eval_rollout(args, rollout_id))[0]
    return run(collect(args, data_source))


async def collect(args, data_source):
    """Generate and filter until the batch is full; return surplus groups to the data source unanswered."""
    state = GenerateState(args)
    keep = load_function(args.dynamic_sampling_filter_path)
    kept, dropped = [], 0
    for _ in range(MAX_ROUNDS):
        groups = data_source.get_samples(args.rollout_batch_size - len(kept))
        for answered in await asyncio.gather(*(answer(args, group, state.sampling_params) for group in groups)):
            if keep(args, answered):
                kept.append(answered)
            else:
                dropped += 1
        if len(kept) == args.rollout_batch_size:
            return RolloutFnTrainOutput(samples=kept, metrics={"rollout/example_dropped": dropped})
    raise RuntimeError(f"{dropped} groups in a row had equal rewards; raise --rollout-temperature")


async def answer(args, group, sampling_params):
    """Answer and score the samples of one prompt together."""
    return await asyncio.gather(*(generate_and_rm(args, sample, dict(sampling_params)) for sample in group))
