"""The default rollout function: the engines answer the data source's prompts, and a reward function scores them.

Guarantees: collection stops with exactly ``rollout_batch_size`` groups that the filter kept, and no surplus request
keeps running on an engine. With ``--partial-rollout`` surplus groups return to the data source with their tokens;
without it, they are dropped and counted, as are groups that a generate function gave up. The prompt of a too stale
group always returns. Plugins import the names they need from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.collection import Collection, is_whole, to_go_on
from slime.rollout.data_source import undecoded
from slime.rollout.engine_access import abort_until_idle
from slime.rollout.evaluation import eval_rollout, eval_rollout_single_dataset
from slime.rollout.generation import GenerateState, Group, generate, generate_and_rm, generate_and_rm_group
from slime.rollout.staleness import StalenessBound
from slime.utils.async_utils import run

__all__ = [
    "GenerateState",
    "abort",
    "eval_rollout",
    "eval_rollout_single_dataset",
    "generate",
    "generate_and_rm",
    "generate_and_rm_group",
    "generate_rollout",
    "generate_rollout_async",
]


async def abort(args: Arguments, rollout_id: int) -> list[Group]:
    """Stop pending groups, wait until every engine is idle, and return the groups to continue later.

    Without ``--partial-rollout`` there are none. Waits for a running evaluation first.
    """
    state = GenerateState(args)
    tasks = [task for task in state.prompts if task in state.pendings]
    async with state.engines_lock:
        state.aborted = True
        await abort_until_idle(args, lambda: all(task.done() for task in tasks))
    groups = [to_go_on(task.result(), state.prompts[task], rollout_id) for task in tasks]
    state.pendings = set()
    return groups if args.partial_rollout else []


async def generate_rollout_async(
    args: Arguments, rollout_id: int, get_samples: Callable[[int], list[Group]]
) -> tuple[RolloutFnTrainOutput, list[Group]]:
    """Collect ``rollout_batch_size`` groups that the filter keeps; return them and the groups to continue later.

    If the filter rejects too many groups, its spare groups fill the batch as soon as dropping one would leave fewer
    groups than a batch. More prompts are requested only if that is not enough.

    Raises:
        ValueError: the data source has no more prompts.
    """
    state = GenerateState(args)
    state.reset()
    state.rollout_id = rollout_id
    collection = Collection(args)
    wanted = args.rollout_batch_size
    staleness = StalenessBound(args)
    surplus: list[Group] = []
    again: list[Group] = []
    try:
        while len(collection.kept) < wanted:
            while state.remaining_batch_size + len(collection.spare) < wanted:
                _ask_for_more(args, state, get_samples)
            if not state.pendings:
                state.remaining_batch_size += collection.fill_up(wanted)
                continue
            done, state.pendings = await asyncio.wait(state.pendings, return_when=asyncio.FIRST_COMPLETED)
            for task in [task for task in state.prompts if task in done]:
                group = task.result()
                if len(collection.kept) == wanted:
                    surplus.append(to_go_on(group, state.prompts[task], rollout_id))
                elif not await staleness.admits(group):
                    again.append(state.prompts[task])
                    state.remaining_batch_size -= 1
                elif not collection.add(group, state.remaining_batch_size):
                    state.remaining_batch_size -= 1
                    if args.partial_rollout and not is_whole(group):
                        again.append(to_go_on(group, state.prompts[task], rollout_id))
    except BaseException:
        for task in state.prompts:
            task.cancel()
        await asyncio.gather(*state.prompts, return_exceptions=True)
        raise
    left = len(state.pendings) + len(surplus)
    surplus = surplus if args.partial_rollout else []
    aborted = [*again, *surplus, *(await abort(args, rollout_id) if state.pendings else [])]
    output = collection.output(get_samples)
    assert output.metrics is not None
    output.metrics |= {"rollout/aborted_groups": left, **staleness.take_metrics()}
    state.reset()
    return output, aborted


def _ask_for_more(args: Arguments, state: GenerateState, get_samples: Callable[[int], list[Group]]) -> None:
    groups = undecoded(get_samples)(args.over_sampling_batch_size or args.rollout_batch_size)
    if not groups:
        have = f"{state.remaining_batch_size} of the {args.rollout_batch_size} groups of a batch"
        raise ValueError(f"the data source has no more prompts; it gave {have}")
    state.submit_generate_tasks(groups)


def generate_rollout(
    args: Arguments, rollout_id: int, data_source: Any, evaluation: bool = False
) -> RolloutFnTrainOutput | RolloutFnEvalOutput:
    """``--rollout-function-path slime.rollout.sglang_rollout.generate_rollout``."""
    if evaluation:
        return run(eval_rollout(args, rollout_id))[0]
    if not args.rollout_global_dataset:
        raise ConfigError(
            "the default rollout needs prompts: add --prompt-data and remove --disable-rollout-global-dataset"
        )
    output, aborted = run(generate_rollout_async(args, rollout_id, data_source.get_samples))
    if aborted:
        data_source.add_samples(aborted)
    return output
