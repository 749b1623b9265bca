"""Convert samples to training data, and split training data into one shard per rank.

Guarantees:

* :func:`convert` loses nothing: a per-token list that is missing on some samples or has a wrong length is an error that
  names the sample. Nothing is padded or cut.
* :func:`split_by_dp` decides everything centrally. Every sample is in exactly one micro-batch of one rank. All ranks
have
  the same number of micro-batches in every optimizer step, padded with empty ones. No micro-batch exceeds the token cap
  unless it is a single sample. The loss denominators are those of the whole step.

Both are pure; the values are plain Python lists.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Sequence
from typing import Any

from slime.args import Arguments, required
from slime.arguments.placement import padded_length
from slime.rollout.media import image_fields, mask_lost_images
from slime.rollout.rewards import mask_sums, post_process_rewards, rollout_ids
from slime.rollout.routed_experts import replayed_experts
from slime.rollout.step_wise import step_fields
from slime.rollout.train_data_checks import (
    check_response,
    check_rewards,
    check_token_lists,
    refuse_unsupported,
)
from slime.utils.streams import carried
from slime.utils.types import EXPERTS, Sample

logger = logging.getLogger(__name__)

TrainData = dict[str, Any]


def convert(args: Arguments, samples: Sequence[Sample]) -> TrainData:
    """Return the training data of ``samples``; see the module for what is checked.

    Keys: tokens, response_lengths, total_lengths, rewards, raw_reward, truncated, sample_indices, group_indices,
    rollout_ids, rollout_mask_sums, loss_masks, step_wise_* with that estimator, rollout_routed_experts if replayed,
    multimodal_train_inputs, and every stream of `slime.utils.streams.SampleStreams` that samples have.
    """
    if not samples:
        raise ValueError("the rollout returned no samples to train on")
    images = image_fields(samples)
    masks = [_checked_mask(sample) for sample in samples]
    mask_lost_images(samples, images, masks)
    raw_rewards, rewards = post_process_rewards(args, samples)
    ids = rollout_ids(samples)
    data: TrainData = {
        "tokens": [list(sample.tokens) for sample in samples],
        "response_lengths": [sample.response_length for sample in samples],
        "total_lengths": [len(sample.tokens) for sample in samples],
        "rewards": rewards,
        "raw_reward": [_logged_reward(sample, raw) for sample, raw in zip(samples, raw_rewards, strict=True)],
        "truncated": [int(sample.status == Sample.Status.TRUNCATED) for sample in samples],
        "sample_indices": [sample.index for sample in samples],
        "group_indices": [-1 if sample.group_index is None else sample.group_index for sample in samples],
        "rollout_ids": ids,
        "rollout_mask_sums": mask_sums(ids, masks),
        "loss_masks": masks,
        **images,
    }
    if args.advantage_estimator == "step_wise":
        data |= step_fields(args, samples, masks)
    data |= _carried_streams(samples)
    names = [f"sample {sample.index}" for sample in samples]
    check_rewards(names, rewards)
    check_token_lists(names, data, data["response_lengths"])
    given = [getattr(sample, EXPERTS) for sample in samples]
    data |= replayed_experts(args, names, given, data["tokens"], masks)
    if any("round_number" in sample.metadata for sample in samples):
        data["round_number"] = [sample.metadata.get("round_number") for sample in samples]
    return data


def _carried_streams(samples: Sequence[Sample]) -> TrainData:
    """Return the streams other than masks that any of the samples carries."""
    data: TrainData = {}
    for attribute, stream in carried():
        if stream.presence == "always":
            continue
        values = [getattr(sample, attribute, None) for sample in samples]
        if all(value is None for value in values):
            continue
        values = [plain_list(value) if stream.per_token else value for value in values]
        if stream.presence == "all or none":
            answered = [
                (sample.index, value) for sample, value in zip(samples, values, strict=True) if sample.response_length
            ]
            missing = [index for index, value in answered if value is None]
            if missing and len(missing) == len(answered):
                continue
            if missing:
                raise ValueError(f"{stream.name} is missing on samples {missing} and present on the others")
            values = [[] if value is None else value for value in values]
        data[stream.name] = values
    return data


def _checked_mask(sample: Sample) -> list[int]:
    name = f"sample {sample.index}"
    refuse_unsupported(name, vars(sample))
    mask = [1] * sample.response_length if sample.loss_mask is None else list(sample.loss_mask)
    check_response(name, sample.tokens, sample.response_length, mask)
    return [0] * len(mask) if sample.remove_sample else mask


def _logged_reward(sample: Sample, raw: float) -> float:
    return float(sample.metadata.get("raw_reward", raw))


def plain_list(value: Any) -> list[Any] | None:
    """Return a list from a list, a NumPy array or a tensor; None stays None."""
    if value is None:
        return None
    return value.tolist() if hasattr(value, "tolist") else list(value)


def steps_of(num_samples: int, args: Arguments) -> list[range]:
    """Return the rollouts of each optimizer step, in order; ``num_samples`` is their total number.

    A step has ``global_batch_size`` rollouts; with ``use_dynamic_global_batch_size`` or ``dynamic_history``, the
    rollouts divided by ``num_steps_per_rollout``. The remainder is dropped with a warning, or with
    ``disable_rollout_trim_samples`` forms a smaller last step.
    """
    size = args.global_batch_size
    by_steps = args.use_dynamic_global_batch_size or args.dynamic_history
    if size is None or by_steps:
        size = max(1, num_samples // (args.num_steps_per_rollout or 1))
    steps = [range(start, start + size) for start in range(0, num_samples - size + 1, size)]
    left = num_samples % size
    if left and args.disable_rollout_trim_samples:
        steps.append(range(num_samples - left, num_samples))
    elif left and steps:
        logger.warning("%d of %d samples do not fill a batch of %d and are dropped", left, num_samples, size)
    if not steps:
        raise ValueError(f"{num_samples} samples do not fill one batch: --global-batch-size is {size}")
    return steps


def samples_of_steps(train_data: TrainData, args: Arguments) -> tuple[list[list[int]], list[int]]:
    """Return the samples of each optimizer step and its number of rollouts; steps never split a rollout.

    In a plugin's training data without ``rollout_ids`` each sample is a rollout.
    """
    ids = train_data.get("rollout_ids") or list(range(len(train_data["total_lengths"])))
    order = {number: position for position, number in enumerate(dict.fromkeys(ids))}
    steps = steps_of(len(order), args)
    members: list[list[int]] = [[] for _ in steps]
    step_of_rollout = {rollout: number for number, step in enumerate(steps) for rollout in step}
    for sample, number in enumerate(ids):
        if order[number] in step_of_rollout:
            members[step_of_rollout[order[number]]].append(sample)
    return members, [len(step) for step in steps]


def split_by_dp(train_data: TrainData, dp_size: int, args: Arguments) -> list[TrainData]:
    """Return one shard per rank, with ``micro_batch_indices``, ``global_batch_sizes``, ``global_token_counts``.

    ``micro_batch_indices[step][k]`` lists indices local to the shard; ``partition`` maps them to the whole batch.
    ``global_batch_sizes[step]`` and ``global_token_counts[step]`` are the rollouts and unmasked tokens over all ranks.
    """
    ranks_of_a_sample = args.context_parallel_size
    lengths = [padded_length(length, ranks_of_a_sample) for length in train_data["total_lengths"]]
    steps, sizes = samples_of_steps(train_data, args)
    plan = [_deal(_pack(step, lengths, args), lengths, dp_size) for step in steps]
    shards = []
    for rank in range(dp_size):
        partition = [index for ranks in plan for batch in ranks[rank] for index in batch]
        local = {index: position for position, index in enumerate(partition)}
        shard = {
            key: [values[index] for index in partition] if _per_sample(values, len(lengths)) else values
            for key, values in train_data.items()
        }
        shard["partition"] = partition
        shard["micro_batch_indices"] = [[[local[index] for index in batch] for batch in ranks[rank]] for ranks in plan]
        shard["global_batch_sizes"] = sizes
        masks = train_data["loss_masks"]
        shard["global_token_counts"] = [sum(sum(masks[index]) for index in step) for step in steps]
        shards.append(shard)
    return shards


def _per_sample(values: Any, num_samples: int) -> bool:
    return isinstance(values, list) and len(values) == num_samples


def _pack(step: Sequence[int], lengths: Sequence[int], args: Arguments) -> list[list[int]]:
    """Return the micro-batches of one step: first-fit decreasing under the token cap, or runs of micro_batch_size.

    ``lengths`` include the padding for context-parallel ranks.
    """
    if not args.use_dynamic_batch_size:
        size = args.micro_batch_size
        return [list(step[start : start + size]) for start in range(0, len(step), size)]
    # Each context-parallel rank holds part of every sample.
    cap = required("--max-tokens-per-gpu", args.max_tokens_per_gpu) * args.context_parallel_size
    batches: list[list[int]] = []
    loads: list[int] = []
    for index in sorted(step, key=lambda index: (-lengths[index], index)):
        fitting = next((k for k, load in enumerate(loads) if load + lengths[index] <= cap), None)
        if fitting is None:
            batches.append([index])
            loads.append(lengths[index])
        else:
            batches[fitting].append(index)
            loads[fitting] += lengths[index]
    return batches


def _deal(batches: list[list[int]], lengths: Sequence[int], dp_size: int) -> list[list[list[int]]]:
    """Assign the same number of micro-batches to every rank, greedily balancing their tokens."""
    batches = _split_to_multiple(batches, lengths, dp_size)
    per_rank = len(batches) // dp_size
    ranks: list[list[list[int]]] = [[] for _ in range(dp_size)]
    open_ranks = [(0, rank) for rank in range(dp_size)]
    for batch in sorted(batches, key=lambda batch: -_tokens(batch, lengths)):
        load, rank = heapq.heappop(open_ranks)
        ranks[rank].append(batch)
        if len(ranks[rank]) < per_rank:
            heapq.heappush(open_ranks, (load + _tokens(batch, lengths), rank))
    return ranks


def _split_to_multiple(batches: list[list[int]], lengths: Sequence[int], divisor: int) -> list[list[int]]:
    """Halve the longest micro-batches until their number is a multiple of ``divisor``; empty ones fill the rest."""
    batches = [list(batch) for batch in batches]
    while len(batches) % divisor:
        divisible = [batch for batch in batches if len(batch) > 1]
        if not divisible:
            batches += [[] for _ in range(-len(batches) % divisor)]
            break
        longest = max(divisible, key=lambda batch: _tokens(batch, lengths))
        batches.remove(longest)
        batches += [longest[::2], longest[1::2]]
    return batches


def _tokens(batch: Sequence[int], lengths: Sequence[int]) -> int:
    return sum(lengths[index] for index in batch)
