"""Convert samples to training data, and split training data into one shard per rank.

Guarantees:

* :func:`convert` loses nothing: a per-token list that is missing on some samples or has a wrong length is an error that
  names the sample. Nothing is padded or cut. A check raises :class:`TrainDataError` with the contract clause
  (`slime.contract.clauses`) that a plugin broke.
* Images travel as a processor's outputs, in NumPy, because Ray's object store shares NumPy arrays without a copy but is
  slow with torch tensors.
* Experts that engines sampled with (``--use-rollout-routing-replay``) are never recomputed.
  ``Sample.rollout_routed_experts`` is ``[rows, layers, K]`` int16: row ``i`` has the experts of token ``i``, from which
  token ``i + 1`` was sampled, as an engine reported them; a continued response requests only the missing rows. Training
  data have a row for each token but the last. A missing row that no trained token depends on becomes `OWN_CHOICE`.
* :func:`split_by_dp` decides everything centrally. Every sample is in exactly one micro-batch of one rank. All ranks
  have the same number of micro-batches in every optimizer step, padded with empty ones. No micro-batch exceeds the
  token cap unless it is a single sample. The loss denominators are those of the whole step.

All of it is pure; values but images and experts are plain Python lists.
"""

from __future__ import annotations

import heapq
import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from slime.args import Arguments
from slime.arguments.placement import padded_length
from slime.rollout.rewards import mask_sums, post_process_rewards, rollout_ids, step_fields
from slime.utils.streams import carried
from slime.utils.types import EXPERTS, GRID, IMAGES, OWN_CHOICE, PIXELS, ExpertShape, Sample, expert_shape

UNSUPPORTED_KEYS = ("rollout_top_p_token_ids",)


class TrainDataError(ValueError):
    """Invalid training data.

    Attributes:
        clause: id of the clause that a plugin's data break.
    """

    def __init__(self, clause: str, text: str) -> None:
        super().__init__(text)
        self.clause = clause


def check_response(name: str, tokens: Sequence[int], response_length: int, mask: Sequence[int]) -> None:
    """Check that the response fits the tokens, has one before it, and has a mask of its length."""
    if not 0 <= response_length <= len(tokens):
        raise TrainDataError(
            "convert-4", f"{name}: response_length {response_length} does not fit {len(tokens)} tokens"
        )
    if response_length == len(tokens):
        raise TrainDataError(
            "convert-5", f"{name}: all {len(tokens)} tokens are response; add a prompt token before them"
        )
    if len(mask) != response_length:
        text = f"{name}: loss_mask has {len(mask)} entries, the response {response_length} tokens"
        raise TrainDataError("convert-4", text)


def check_rewards(names: Sequence[str], rewards: Sequence[Any]) -> None:
    """Check that every reward is a finite number."""
    for name, reward in zip(names, rewards, strict=True):
        if not hasattr(reward, "__float__") or not math.isfinite(float(reward)):
            raise TrainDataError("convert-6", f"{name}: the reward {reward!r} is not a finite number")


def check_token_lists(names: Sequence[str], data: Mapping[str, Any], response_lengths: Sequence[int]) -> None:
    """Check per-token streams: one entry per sample, as long as the response, or None if optional."""
    for _, stream in carried():
        key, lists = stream.name, data.get(stream.name)
        if lists is None or not stream.per_token or stream.presence == "always":
            continue
        if len(lists) != len(names):
            raise TrainDataError("convert-7", f"{key} has {len(lists)} entries for {len(names)} samples")
        for name, values, length in zip(names, lists, response_lengths, strict=True):
            if values is None and (stream.presence == "optional" or not length):
                continue
            if values is None:
                raise TrainDataError("convert-7", f"{name}: {key} is missing, but other samples have it")
            if len(values) != length:
                text = f"{name}: {key} has {len(values)} entries, the response {length} tokens"
                raise TrainDataError("convert-7", text)


def refuse_unsupported(name: str, fields: Mapping[str, Any]) -> None:
    """Raise TrainDataError for values that no back end trains on."""
    for key in UNSUPPORTED_KEYS:
        if fields.get(key) is not None:
            raise TrainDataError("convert-8", f"{name}: {key} is not supported by the training back end")


logger = logging.getLogger(__name__)

# Processor outputs with the images' token positions; the trainer derives them from the tokens.
_OF_TOKENS = ("mm_token_type_ids", "token_type_ids")
CLAUSE = "convert-9"


def image_arrays(name: str, inputs: Mapping[str, Any] | None) -> dict[str, np.ndarray] | None:
    """Return ``{"pixel_values": [patches, D] float32, "image_grid_thw": [images, 3] int64}`` of a sample; None without images.

    Args:
        name: name of the sample, for errors.
        inputs: its ``multimodal_train_inputs``, in torch or NumPy.

    Raises:
        TrainDataError: there are videos or unknown entries, or the patches do not fit the grids.
    """
    inputs = {key: value for key, value in (inputs or {}).items() if key not in _OF_TOKENS and value is not None}
    if not inputs:
        return None
    unknown = sorted(set(inputs) - {PIXELS, GRID})
    if unknown:
        raise TrainDataError(
            CLAUSE,
            f"{name}: multimodal_train_inputs has {', '.join(unknown)}; only images ({PIXELS}, {GRID}) are trained on",
        )
    missing = sorted({PIXELS, GRID} - set(inputs))
    if missing:
        raise TrainDataError(CLAUSE, f"{name}: multimodal_train_inputs has no {missing[0]}")
    pixels, grids = _array(inputs[PIXELS], np.float32), _array(inputs[GRID], np.int64)
    if pixels.ndim != 2 or grids.ndim != 2 or grids.shape[1] != 3:
        shapes = f"{PIXELS} {list(pixels.shape)} and {GRID} {list(grids.shape)}"
        raise TrainDataError(CLAUSE, f"{name}: {shapes} are not [patches, D] and [images, 3]")
    patches = sum(math.prod(grid) for grid in grids.tolist())
    if patches != len(pixels):
        raise TrainDataError(CLAUSE, f"{name}: {GRID} says {patches} patches, {PIXELS} has {len(pixels)}")
    return {PIXELS: pixels, GRID: grids} if len(grids) else None


def _array(values: Any, dtype: Any) -> np.ndarray:
    """Return an array from an array, lists, or a torch tensor of any precision on any device."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if dtype is np.float32 else values
    return np.asarray(values, dtype=dtype)


def image_fields(samples: Sequence[Sample]) -> dict[str, list[dict[str, np.ndarray] | None]]:
    """Return the field ``multimodal_train_inputs`` of training data; empty if no sample has images.

    Samples that share a processor's outputs share the arrays, so that Ray sends them once per rank.

    Raises:
        TrainDataError: the arrays are invalid, or samples with images all lack the processor's outputs.
    """
    made: dict[tuple[Any, ...], dict[str, np.ndarray] | None] = {}
    arrays = []
    for sample in samples:
        key = tuple((name, id(value)) for name, value in (sample.multimodal_train_inputs or {}).items())
        if key not in made:
            made[key] = image_arrays(f"sample {sample.index}", sample.multimodal_train_inputs)
        arrays.append(made[key])
    if any(value is not None for value in arrays):
        return {IMAGES: arrays}
    lost = [sample.index for sample in samples if _has_media(sample)]
    if lost:
        raise TrainDataError(
            CLAUSE, f"sample {lost[0]}: multimodal_inputs has images, but no sample has multimodal_train_inputs"
        )
    return {}


def mask_lost_images(samples: Sequence[Sample], fields: Mapping[str, Sequence[Any]], masks: list[list[int]]) -> None:
    """Zero the masks of samples with images that lack the processor's arrays.

    The arrays cannot be recomputed here. Text-only samples lack nothing and are trained on.
    """
    lost = [place for place, value in enumerate(fields.get(IMAGES, ())) if value is None and _has_media(samples[place])]
    for place in lost:
        masks[place] = [0] * len(masks[place])
    if lost:
        logger.warning(
            "%d of %d samples had images but lack multimodal_train_inputs; they are not trained on",
            len(lost),
            len(samples),
        )


def _has_media(sample: Sample) -> bool:
    return any(bool(value) for value in (sample.multimodal_inputs or {}).values())


def request_fields(args: Arguments, sample: Sample) -> dict[str, Any]:
    """Return extra ``/generate`` fields that request the rows that ``sample`` lacks."""
    if not args.use_rollout_routing_replay:
        return {}
    held = getattr(sample, EXPERTS)
    return {"return_routed_experts": True, "routed_experts_start_len": 0 if held is None else len(held)}


def replayed_experts(
    args: Arguments,
    names: Sequence[str],
    given: Sequence[Any],
    tokens: Sequence[Sequence[int]],
    masks: Sequence[Sequence[int]],
) -> dict[str, list[Any]]:
    """Return the samples' experts as training data, one row per token but the last; empty without the flag.

    Raises:
        TrainDataError: a row that a trained token depends on is missing, or an array does not fit.
    """
    if not args.use_rollout_routing_replay:
        for name, array in zip(names, given, strict=True):
            if array is not None:
                raise TrainDataError("convert-8", f"{name}: {EXPERTS} needs --use-rollout-routing-replay")
        return {}
    shape = expert_shape(args.hf_checkpoint)
    samples = zip(names, given, tokens, masks, strict=True)
    return {EXPERTS: [_whole(name, array, len(ids), mask, shape) for name, array, ids, mask in samples]}


def _whole(name: str, given: Any, total: int, mask: Sequence[int], shape: ExpertShape) -> np.ndarray:
    trained = [place for place, value in enumerate(mask) if value]
    needed = total - len(mask) + trained[-1] if trained else 0
    if given is None:
        if needed:
            raise TrainDataError(
                "convert-8",
                f"{name}: {EXPERTS} is missing: external engines need --enable-return-routed-experts, and a rollout or "
                "generate function of your own must keep what they return; or use --use-routing-replay",
            )
        given = np.empty((0, shape.layers, shape.per_token), np.int16)
    try:
        array = np.asarray(given)
    except (TypeError, ValueError) as error:  # lists of different lengths, a tensor on a GPU
        raise TrainDataError("convert-8", f"{name}: {EXPERTS} is not an array: {error}") from error
    if array.ndim != 3 or array.shape[1:] != (shape.layers, shape.per_token) or array.dtype.kind not in "iu":
        raise TrainDataError(
            "convert-8",
            f"{name}: {EXPERTS} is {array.dtype} {array.shape}; {total} tokens in {shape.layers} layers with "
            f"{shape.per_token} experts each need whole numbers ({total - 1}, {shape.layers}, {shape.per_token})",
        )
    if not needed <= len(array) <= max(0, total - 1):
        raise TrainDataError(
            "convert-8",
            f"{name}: {EXPERTS} has {len(array)} rows; {total} tokens need {total - 1}, one for all but the last",
        )
    if array.size and not 0 <= array.min() <= array.max() < shape.experts:
        raise TrainDataError("convert-8", f"{name}: {EXPERTS} has an expert id outside the model's {shape.experts}")
    _check_distinct(name, array)
    whole = np.full((max(0, total - 1), shape.layers, shape.per_token), OWN_CHOICE, np.int16)
    whole[: len(array)] = array
    return whole


def _check_distinct(name: str, array: np.ndarray) -> None:
    """Raise TrainDataError if a token of ``[rows, layers, K]`` has an expert twice, which no router chooses."""
    columns = np.ascontiguousarray(np.moveaxis(array, -1, 0))  # comparing rows of K is fifty times slower
    twice = np.zeros(array.shape[:2], bool)
    for apart in range(1, len(columns)):
        twice |= (columns[apart:] == columns[:-apart]).any(0)
    if twice.any():
        row, layer = np.argwhere(twice)[0].tolist()
        raise TrainDataError(
            "convert-8",
            f"{name}: {EXPERTS} has an expert twice for {int(twice.any(1).sum())} tokens, first {array[row, layer].tolist()} for token "
            f"{row} in layer {layer}: no router chooses this, so the report is wrong; use --use-routing-replay",
        )


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
    lengths = list(train_data["total_lengths"])
    if ranks_of_a_sample > 1:
        lengths = [padded_length(length, ranks_of_a_sample) for length in lengths]
    steps, sizes = samples_of_steps(train_data, args)
    plan = [micro_batches_of_ranks(step, lengths, dp_size, args) for step in steps]
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


def micro_batches_of_ranks(
    step: Sequence[int], lengths: Sequence[int], ranks: int, args: Arguments
) -> list[list[list[int]]]:
    """Return each rank's micro-batches of the samples ``step``, as many for every rank; those without samples are empty."""
    return _deal(_pack(step, lengths, args), lengths, ranks)


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
    assert args.max_tokens_per_gpu is not None, "checked with the flags"
    cap = args.max_tokens_per_gpu * args.context_parallel_size
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
