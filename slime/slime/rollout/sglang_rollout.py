"""The default rollout function: prompts of a data source, answered by the engines, scored by a reward function.

Guarantees: collection stops with exactly ``rollout_batch_size`` groups that the filter kept; no request of the surplus is left
running on any engine. With ``--partial-rollout`` the surplus goes back to the data source with what it has; without, it is
dropped and counted; so it is with a group that a generate function gave up. The prompt of a group that is too stale goes back in any case. Plugins import their names from here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from slime.args import Arguments
from slime.exceptions import ConfigurationError
from slime.rollout.base_types import RolloutFnEvalOutput, RolloutFnTrainOutput
from slime.rollout.collection import Collection, is_whole, to_go_on
from slime.rollout.data_source import undecoded
from slime.rollout.engine_pool import abort_until_idle
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
    """Stop what is pending, wait until every engine is idle, and return the groups to go on with later.

    There are none without ``--partial-rollout``. An evaluation that runs is waited for.
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
    """Collect ``rollout_batch_size`` groups that the filter keeps; return them and the groups to go on with later.

    A batch is filled up with what the filter would keep when there is too little, as soon as dropping it would leave fewer
    groups than a batch; only if that does not suffice more prompts are asked for.

    Raises:
        ValueError: when the data source has no more prompts.
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
        raise ConfigurationError(
            "the default rollout needs prompts: give --prompt-data and drop --disable-rollout-global-dataset"
        )
    output, aborted = run(generate_rollout_async(args, rollout_id, data_source.get_samples))
    if aborted:
        data_source.add_samples(aborted)
    return output
