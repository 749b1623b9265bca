"""Evaluation with the default rollout: the engines answer every evaluation set, and graders score it.

Guarantees: evaluation samples never mix with training samples, and every prompt has its answers in the result. The end
of a training rollout waits for them instead of aborting them. An aborted answer counts with reward 0 and in
``aborted``.
"""

from __future__ import annotations

import logging
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.evaluation import EvalDataset
from slime.rollout.base_types import RolloutFnEvalOutput
from slime.rollout.eval_datasets import eval_group, eval_sampling_params, load_eval_prompts
from slime.rollout.generation import GenerateState, generate_and_rm_group
from slime.rollout.metrics import flatten
from slime.rollout.stored_pictures import put_pictures_away
from slime.utils.async_utils import gather_or_cancel
from slime.utils.types import Sample

logger = logging.getLogger(__name__)


@dataclass
class Progress:
    """Finished and requested answers over all sets of the running evaluation."""

    done: int = 0
    total: int = 0


PROGRESS = Progress()
_lock = threading.Lock()


def add_progress(done: int = 0, total: int = 0) -> None:
    """Count answers."""
    with _lock:
        PROGRESS.done += done
        PROGRESS.total += total


async def eval_rollout(args: Arguments, rollout_id: int) -> tuple[RolloutFnEvalOutput, list[Any]]:
    """Answer and score all evaluation sets concurrently; without a set, warn and return nothing."""
    PROGRESS.done = PROGRESS.total = 0
    data: dict[str, dict[str, Any]] = {}
    if not args.eval_datasets:
        logger.warning("nothing to evaluate: no set is given; add --eval-prompt-data NAME PATH or --eval-function-path")
        return RolloutFnEvalOutput(data=data), []
    for dataset in args.eval_datasets:
        load_eval_prompts(args, dataset)  # report problems with any file before the first answer
    results = (eval_rollout_single_dataset(args, rollout_id, dataset) for dataset in args.eval_datasets)
    async with GenerateState(args).engines_lock:
        for result in await gather_or_cancel(results):
            data.update(result)
    return RolloutFnEvalOutput(data=data), []


async def eval_rollout_single_dataset(args: Arguments, rollout_id: int, cfg: EvalDataset) -> dict[str, dict[str, Any]]:
    """Answer and score one evaluation set.

    Returns ``{name: result}`` with ``rewards``, ``truncated``, ``aborted`` and ``groups``, one per answer, and
    ``samples``: the pieces that the answers were cut into, in order. Their pictures stay as stored in the file. Only as
    many prompts are decoded at once as requests may run.
    """
    state = GenerateState(args)
    parameters = eval_sampling_params(cfg, state.sampling_params)
    prompts = load_eval_prompts(args, cfg)
    add_progress(total=len(prompts) * cfg.n_samples_per_eval_prompt)

    async def answer(position: int) -> list[Any]:
        media = prompts[position].multimodal_inputs
        async with state.pictured_prompts if media else nullcontext():
            group = eval_group(args, cfg, position)
            answers = await generate_and_rm_group(args, group, dict(parameters), evaluation=True)
            put_pictures_away(flatten(answers))
        add_progress(done=len(group))
        return answers

    result: dict[str, list[Any]] = {name: [] for name in ("rewards", "truncated", "aborted", "groups", "samples")}
    for number, answers in enumerate(await gather_or_cancel(map(answer, range(len(prompts))))):
        for one in answers:
            pieces = one if isinstance(one, list) else [one]
            result["rewards"].append(_reward(args, pieces))
            result["truncated"].append(any(piece.status == Sample.Status.TRUNCATED for piece in pieces))
            result["aborted"].append(not pieces or any(piece.status == Sample.Status.ABORTED for piece in pieces))
            result["groups"].append(number)
            result["samples"] += pieces
    return {cfg.name: result}


def _reward(args: Arguments, pieces: list[Sample]) -> float:
    """Return the reward of an answer: that of its first piece with a reward."""
    reward = next((piece.reward for piece in pieces if piece.reward is not None), 0.0)
    if not isinstance(reward, dict):
        return float(reward)
    key = args.eval_reward_key or args.reward_key
    if key not in reward:
        raise ConfigError(f"a reward has {', '.join(map(str, reward))}; choose one with --eval-reward-key KEY")
    return float(reward[key])
