"""Rewards of samples: what scores a sample, and the built-in graders.

Guarantees: the order of precedence is the sample's own reward function, ``--custom-rm-path``, the grader in
``metadata["rm_type"]``, ``--rm-type``. A sample that nothing can score is an error, not a zero. A reply without an
answer, or one that could not be graded within its limits, gets the grader's lowest reward;
``metadata["grader_problem"]`` records why and is counted.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable
from typing import Any

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.exceptions import SampleError
from slime.rollout.reward_plugin import load_reward_function
from slime.rollout.rm_hub.math_utils import grade_answer_verl
from slime.rollout.rm_hub.registry import find_grader
from slime.rollout.rm_hub.workers import GraderTimeout
from slime.utils.async_utils import gather_or_cancel
from slime.utils.types import Sample

__all__ = [
    "async_rm",
    "batched_async_rm",
    "check_samples",
    "grade_answer_verl",
    "reward_by_type",
]

logger = logging.getLogger(__name__)

PROBLEM = "grader_problem"
BY_TYPE = "slime.rollout.rm_hub.reward_by_type"


async def async_rm(args: Arguments, sample: Sample, **kwargs: Any) -> Any:
    """Return the reward of one sample, a number or a dict of them."""
    path = sample.custom_rm_path or args.custom_rm_path
    if path:
        return await load_reward_function(path, args)(args, sample, **kwargs)
    return await reward_by_type(args, sample)


async def batched_async_rm(args: Arguments, samples: list[Sample], **kwargs: Any) -> list[Any]:
    """Return the rewards of several samples.

    Each reward function is called once with the list of its samples; the run's function even with an empty list.
    """
    members: dict[str | None, list[int]] = {args.custom_rm_path: []} if args.custom_rm_path else {}
    for position, sample in enumerate(samples):
        members.setdefault(getattr(sample, "custom_rm_path", None) or args.custom_rm_path, []).append(position)
    rewards: list[Any] = [None] * len(samples)
    for path, positions in members.items():
        mine = [samples[position] for position in positions]
        function = load_reward_function(path, args) if path else reward_by_type
        scored = await function(args, mine, **(kwargs if path else {}))
        if len(scored) != len(mine):
            raise ConfigError(f"{path} returned {len(scored)} rewards for {len(mine)} samples")
        for position, reward in zip(positions, scored, strict=True):
            rewards[position] = reward
    return rewards


async def reward_by_type(args: Arguments, sample: Sample | list[Sample], **kwargs: Any) -> Any:
    """Return the reward by the grader of ``metadata["rm_type"]`` or ``--rm-type``; a list of them for a list."""
    if isinstance(sample, list):
        return await gather_or_cancel(reward_by_type(args, one) for one in sample)
    grader = find_grader(_grader_name(args, sample))
    grader.check(sample)
    answer = grader.extract(sample.response)
    if answer is None:
        sample.metadata[PROBLEM] = "no_answer"
        return copy.copy(grader.wrong)
    try:
        return await grader.compare(args, sample, answer)
    except GraderTimeout as error:
        logger.warning("sample %s: %s; it counts as wrong", sample.index, error)
        sample.metadata[PROBLEM] = "timeout"
        return copy.copy(grader.wrong)


def _grader_name(args: Arguments, sample: Sample) -> str:
    name = sample.metadata.get("rm_type") or args.rm_type
    if not name:
        raise ConfigError(
            f"nothing scores sample {sample.index}; use --rm-type NAME or --custom-rm-path module.function"
        )
    return str(name)


def check_samples(args: Arguments, samples: Iterable[Sample]) -> None:
    """Check that a grader can score each sample without its own reward function.

    Raises:
        ConfigError: there is no such grader.
        SampleError: a sample lacks what its grader needs; the message gives the first one's position.
    """
    run_path, run_type = args.custom_rm_path, args.rm_type
    for position, sample in enumerate(samples):
        path = sample.custom_rm_path or run_path
        name = sample.metadata.get("rm_type") or run_type
        if name and path in (None, BY_TYPE):
            grader = find_grader(str(name))
            try:
                grader.check(sample)
            except SampleError as error:
                raise SampleError(f"row {position}: {error}") from error
