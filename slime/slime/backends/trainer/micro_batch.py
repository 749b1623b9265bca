"""From one rank's shard of a rollout to the summed loss of a micro-batch, for any model.

Guarantees: every per-token list has its response's length, checked once on arrival. Values reach the device one
micro-batch at a time, in one pinned copy per dtype that neither this process nor the GPU waits for (:func:`to_device`).
In a micro-batch no token of one sample sees another sample, response rows come out in sample
order, and images are joined for one pass of the vision tower. A micro-batch always has at least one row, so that every
rank runs the same collectives even without a sample. A fuse that holds back an optimizer step decides after the
backward pass and before a weight changes.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from groundwork.private_files import private, private_folder
from slime.algorithms.losses import LOSSES
from slime.algorithms.losses.custom import custom_loss, reads_response_rows
from slime.algorithms.losses.named_values import load_custom_loss
from slime.algorithms.losses.reduce import Reducer, make_reducer
from slime.algorithms.losses.supervised import value_loss
from slime.args import Arguments
from slime.logprobs.response_rows import ResponseRows
from slime.utils import streams
from slime.utils.fuses import OF_THE_LOSS, blown
from slime.utils.metric_names import HELD, is_largest
from slime.utils.misc import load_function
from slime.utils.streams import Stream, TrainBatch
from slime.utils.types import EXPERTS, GRID, IMAGES, PIXELS

SampleImages = dict[str, Tensor]


def to_device(tensors: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    """Return ``tensors`` of the CPU on ``device``; a CPU returns them unchanged.

    A GPU gets one copy per dtype, from pinned memory and behind its queue. Results of one dtype share memory, but an
    in-place change of one leaves what autograd saved of the others valid.
    """
    if device.type == "cpu":
        return list(tensors)
    results: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        places = [place for place, tensor in enumerate(tensors) if tensor.dtype == dtype]
        sizes = [tensors[place].numel() for place in places]
        staged = torch.empty(sum(sizes), dtype=dtype, pin_memory=device.type == "cuda")
        torch.cat([tensors[place].flatten() for place in places], out=staged)
        pieces = staged.to(device, non_blocking=True).split(sizes)
        # .data has a version counter of its own.
        results |= {place: piece.view(tensors[place].shape).data for place, piece in zip(places, pieces, strict=True)}
    return [results[place] for place in range(len(tensors))]


def to_cpu(values: Mapping[int, Tensor]) -> dict[int, Tensor]:
    """Return ``values`` on the CPU by one copy; each is a tensor of its own, which pickles alone."""
    if not values:
        return {}
    lengths = [len(value) for value in values.values()]
    pieces = torch.cat(list(values.values())).cpu().split(lengths)
    return {index: piece.clone() for index, piece in zip(values, pieces, strict=True)}


def _ids(tokens: Sequence[int]) -> Tensor:
    """Return token ids ``[L]`` as int64, in a fraction of torch.tensor's time for a list."""
    return torch.from_numpy(np.array(tokens, dtype=np.int64))


@dataclass(frozen=True)
class Images:
    """Images of a micro-batch; present in all micro-batches if any sample has one, so that all ranks run the tower.

    Attributes:
        pixels: ``[patches, D]`` of all images, sample after sample; None if this micro-batch has none.
        grids: ``[images, 3]`` of each sample on the CPU: frames, rows and columns of patches.
        tokens: the token ids of each sample.
    """

    pixels: Tensor | None
    grids: list[Tensor]
    tokens: list[list[int]]


def join_images(tokens: Sequence[Sequence[int]], images: Sequence[SampleImages | None], device: torch.device) -> Images:
    """Return the joined images of samples, some of which may have none."""
    pixels = [sample[PIXELS] for sample in images if sample]
    return Images(
        pixels=to_device([torch.cat(pixels)], device)[0] if pixels else None,
        grids=[sample[GRID] if sample else torch.empty(0, 3, dtype=torch.int64) for sample in images],
        tokens=[list(ids) for ids in tokens],
    )


# Number of images per sample.
NUM_IMAGES = "multimodal_num_items"


class RolloutShard:
    """One rank's samples of a rollout, checked on arrival; the rank owns them for one training or one set of probes."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.tokens: list[list[int]] = data["tokens"]
        self.partition: list[int] = data["partition"]
        self.micro_batches: list[list[list[int]]] = data["micro_batch_indices"]
        self.global_batch_sizes: list[int] = data["global_batch_sizes"]
        self.global_token_counts: list[int] = data["global_token_counts"]
        self.fields: dict[str, Any] = {
            "total_lengths": [len(tokens) for tokens in self.tokens],
            "response_lengths": list(data["response_lengths"]),
            "rewards": list(data["rewards"]),
        }
        known = {*self.fields, *streams.computed()}
        for stream in streams.STREAMS:
            if stream.name in data and stream.name not in known:
                entries = enumerate(data[stream.name])
                self.fields[stream.name] = [self._entry(stream, index, values) for index, values in entries]
        self.experts: list[Tensor] | None = None
        """``[total length - 1, layers, K]`` int16 per sample, if engines recorded experts; see ``routed_experts``."""
        if EXPERTS in data:
            self.experts = [torch.tensor(array) for array in data[EXPERTS]]
        if IMAGES in data:
            self.fields[IMAGES] = [_tensors(arrays) for arrays in data[IMAGES]]
            self.fields[NUM_IMAGES] = [len(tensors[GRID]) if tensors else 0 for tensors in self.fields[IMAGES]]

    def _entry(self, stream: Stream, index: int, values: Any) -> Any:
        if values is None or not stream.per_token:
            return values
        tensor = torch.as_tensor(values, dtype=getattr(torch, stream.dtype))
        expected = self.fields["response_lengths"][index]
        if len(tensor) != expected:
            raise ValueError(
                f"sample {index} of the shard: {stream.name} has {len(tensor)} entries for {expected} response tokens"
            )
        return tensor

    @property
    def num_samples(self) -> int:
        return len(self.tokens)

    def set_computed(self, name: str, values: list[Tensor]) -> None:
        """Store ``[R_i]`` results per sample; ``name`` is a per-token stream that the trainer computes."""
        if name not in streams.computed():
            raise KeyError(f"{name} is not one of {', '.join(streams.computed())}")
        self.fields[name] = values

    def dump(self, path: str) -> None:
        """Write tokens, micro-batches and all fields to a file that ``torch.load`` reads."""
        private_folder(Path(path).parent)
        data: dict[str, Any] = {"tokens": self.tokens, "micro_batch_indices": self.micro_batches}
        data |= {} if self.experts is None else {EXPERTS: self.experts}
        with open(path, "wb", opener=private) as file:
            torch.save({**data, "global_batch_sizes": self.global_batch_sizes, **self.fields}, file)

    def by_position(self, name: str) -> dict[int, Tensor]:
        """Return a computed field's values by their sample's position in the whole rollout."""
        return dict(zip(self.partition, self.fields[name], strict=True))

    def set_from_positions(self, name: str, parts: Sequence[dict[int, Tensor]]) -> None:
        """Store results of other ranks' ``by_position``; together ``parts`` must cover this shard."""
        values = {position: value for part in parts for position, value in part.items()}
        self.set_computed(name, [values[position] for position in self.partition])

    def batch(self, indices: list[int], device: torch.device, *, images: bool = True) -> TrainBatch:
        """Return the per-sample lists of ``indices``, tensors on ``device``, and ``unconcat_tokens``.

        Without ``images`` the batch has no pixel values, because the model input already has them on the device.
        """

        fields = {name: values for name, values in self.fields.items() if images or name != IMAGES}
        batch: dict[str, Any] = {name: [values[i] for i in indices] for name, values in fields.items()}
        batch["unconcat_tokens"] = [_ids(self.tokens[i]) for i in indices]
        leaves = [tensor for values in batch.values() for value in values for tensor in _tensors_of(value)]
        there = dict(zip(map(id, leaves), to_device(leaves, device), strict=True))

        def moved(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: moved(inner) for key, inner in value.items()}
            return there[id(value)] if isinstance(value, Tensor) else value

        batch = {name: [moved(value) for value in values] for name, values in batch.items()}
        return cast(TrainBatch, batch)


def _tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors of one sample's entry: itself, or a dict's."""
    if isinstance(value, dict):
        return [tensor for inner in value.values() for tensor in _tensors_of(inner)]
    return [value] if isinstance(value, Tensor) else []


def _tensors(arrays: dict[str, Any] | None) -> SampleImages | None:
    return None if arrays is None else {name: torch.tensor(array) for name, array in arrays.items()}


def postprocess(args: Arguments, rollout_id: int, data: RolloutShard) -> None:
    """Call the function of ``--rollout-data-postprocess-path`` on the rank's data, if there is one.

    The plugin runs after log probabilities and advantages, before the first optimizer step.

    ``fn(args, rollout_id, rollout_data)``; an older function with fewer than three parameters is called as
    ``fn(args)``. ``rollout_data`` maps names to per-sample lists; the steps train on the plugin's in-place changes.
    """
    path = args.rollout_data_postprocess_path
    if not path:
        return
    function = load_function(path)
    if len(inspect.signature(function).parameters) < 3:
        function(args)
        return
    data.fields["tokens"] = data.tokens
    try:
        function(args, rollout_id, data.fields)
    finally:
        del data.fields["tokens"]


@dataclass(frozen=True)
class MicroBatch:
    """One model input.

    Attributes:
        input_ids: ``[1, T]`` packed, or ``[B, L]`` padded on the right.
        position_ids: ``[1, T]``, restarting at every sample; None when padded.
        sequence_lengths: tokens of each sample, in order.
        response_lengths: response tokens of each sample.
        rows: ``[N]`` positions in the flattened input whose output predicts a response token.
        targets: ``[N]`` those response tokens.
        target_range: the smallest and the largest target, known without a look at the device.
        token_rows: ``[T]`` positions of the real tokens in the flattened input.
        is_filler: True if there is no sample and the input is a dummy without effect.
        images: images of the samples; None in a text-only rollout.
    """

    input_ids: Tensor
    position_ids: Tensor | None
    sequence_lengths: list[int]
    response_lengths: list[int]
    rows: Tensor
    targets: Tensor
    target_range: tuple[int, int]
    token_rows: Tensor
    is_filler: bool
    images: Images | None = None

    def per_sample(self, values: Tensor) -> list[Tensor]:
        """Split ``values`` ``[N]`` into ``[R_i]`` per sample."""
        return list(values[: sum(self.response_lengths)].split(self.response_lengths)) if self.response_lengths else []


def build(
    tokens: Sequence[Sequence[int]],
    response_lengths: Sequence[int],
    *,
    packed: bool,
    device: torch.device,
    images: Sequence[SampleImages | None] | None = None,
) -> MicroBatch:
    """Return the model input of samples given by ``tokens`` (prompt and response ids) and ``images``."""
    is_filler = not tokens
    sequences = tokens or [[0, 0]]
    lengths = [len(ids) for ids in sequences]
    for index, (length, response) in enumerate(zip(lengths, response_lengths, strict=False)):
        if not 0 <= response < length:
            raise ValueError(
                f"sample {index} of a micro-batch has {length} tokens and a response of {response}: "
                "a response needs at least one token before it"
            )
    sizes, responses = torch.tensor(lengths), torch.tensor(list(response_lengths) or [0])
    width = max(lengths)
    starts = sizes.cumsum(0) - sizes if packed else torch.arange(len(lengths)) * width
    ids = torch.cat([_ids(sample) for sample in sequences])
    positions = _counted(torch.zeros_like(sizes), sizes)
    token_rows = _counted(starts, sizes)
    input_ids = ids if packed else torch.zeros(len(lengths) * width, dtype=torch.int64).index_copy_(0, token_rows, ids)
    rows = _counted(starts + sizes - responses - 1, responses)
    targets = input_ids[rows + 1]
    if not len(rows):
        rows, targets = torch.zeros(1, dtype=torch.int64), torch.zeros(1, dtype=torch.int64)
    moved = to_device([input_ids, positions, rows, targets, token_rows], device)
    input_ids, positions, rows, targets_there, token_rows = moved
    return MicroBatch(
        input_ids=input_ids.view(1 if packed else len(lengths), -1),
        position_ids=positions.unsqueeze(0) if packed else None,
        sequence_lengths=lengths,
        response_lengths=list(response_lengths),
        rows=rows,
        targets=targets_there,
        target_range=(int(targets.min()), int(targets.max())),
        token_rows=token_rows,
        is_filler=is_filler,
        images=None if images is None else join_images(sequences, images or [None], device),
    )


def _counted(starts: Tensor, lengths: Tensor) -> Tensor:
    """Return ``start, start + 1, ...`` for each start, as many as its length, one after the other."""
    before = lengths.cumsum(0) - lengths
    return torch.arange(int(lengths.sum())) + (starts - before).repeat_interleave(lengths)


Metrics = dict[str, float]


class Model(Protocol):
    """A back end's model for one forward pass."""

    def __call__(
        self,
        batch: MicroBatch,
        *,
        temperature: float,
        chunk_size: int,
        want_logits: bool = False,
        of_rows: Callable[[ResponseRows], Any] | None = None,
    ) -> Any:
        """Return log probabilities and entropies ``[N]`` of the response rows.

        With ``want_logits`` return float32 logits ``[1, T, V]`` of all tokens, with ``of_rows`` its result for the
        response rows.
        """
        ...


def model_input(args: Arguments, shard: RolloutShard, indices: list[int], device: torch.device) -> MicroBatch:
    """Return the model input of the samples ``indices`` of ``shard``."""
    lengths, images = shard.fields["response_lengths"], shard.fields.get(IMAGES)
    return build(
        [shard.tokens[i] for i in indices],
        [lengths[i] for i in indices],
        packed=args.pack_sequences,
        device=device,
        images=None if images is None else [images[i] for i in indices],
    )


def reducer_of(args: Arguments, batch: TrainBatch, response_lengths: list[int]) -> Reducer:
    """Return the reducer of a micro-batch, which may be empty."""
    masks, sums = batch.get("loss_masks", []), batch.get("rollout_mask_sums")
    return make_reducer(args.calculate_per_token_loss, response_lengths, masks, sums)


def micro_batch_loss(
    args: Arguments,
    model: Model,
    shard: RolloutShard,
    indices: list[int],
    device: torch.device,
    *,
    part_of_logits: Callable[[TrainBatch], TrainBatch] | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the summed loss of a micro-batch and its summed metrics; an empty one gives zero with a gradient path.

    ``part_of_logits`` is for a model whose logits cover part of the tokens: it selects from a custom loss's batch
    the entries of these tokens. The custom loss and its metrics then cover that part only.
    """
    inputs = model_input(args, shard, indices, device)
    batch = shard.batch(indices, device, images=args.loss_type == "custom_loss")
    if args.loss_type == "custom_loss":
        batch = part_of_logits(batch) if part_of_logits and not inputs.is_filler else batch
        return _custom_micro_batch_loss(args, model, inputs, batch)
    reduce = reducer_of(args, batch, inputs.response_lengths)
    log_probs, entropy = model(
        inputs,
        temperature=args.rollout_temperature,
        chunk_size=args.log_probs_chunk_size,
    )
    if inputs.is_filler or not sum(inputs.response_lengths):
        return (log_probs.sum() + entropy.sum()) * 0.0, {}
    loss = LOSSES[args.loss_type]
    return loss(args, batch, inputs.per_sample(log_probs), inputs.per_sample(entropy), reduce)


def _custom_micro_batch_loss(
    args: Arguments, model: Model, inputs: MicroBatch, batch: TrainBatch
) -> tuple[Tensor, dict[str, Tensor]]:
    function = load_custom_loss(args.custom_loss_function_path)

    def loss_of(logits: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        if inputs.is_filler:
            return logits.sum() * 0.0, {}
        reduce = reducer_of(args, batch, [len(mask) for mask in batch["loss_masks"]])
        return custom_loss(function, args, batch, logits, reduce)

    def loss_of_rows(rows: ResponseRows) -> tuple[Tensor, dict[str, Tensor]]:
        if inputs.is_filler or not sum(inputs.response_lengths):
            return rows.nothing(), {}
        reduce = reducer_of(args, batch, [len(mask) for mask in batch["loss_masks"]])
        return custom_loss(function, args, batch, rows, reduce)

    given = {"temperature": 1.0, "chunk_size": args.log_probs_chunk_size}
    if reads_response_rows(function):
        return model(inputs, **given, of_rows=loss_of_rows)
    return loss_of(model(inputs, **given, want_logits=True))


def value_micro_batch_loss(
    args: Arguments,
    model: Callable[[MicroBatch], Tensor],
    shard: RolloutShard,
    indices: list[int],
    device: torch.device,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the summed value loss of a micro-batch and its summed metrics; an empty one gives zero with a gradient path.

    ``model`` is a critic: it gives the values ``[N]`` float32 of the response rows.
    """
    inputs = model_input(args, shard, indices, device)
    values = model(inputs)
    if inputs.is_filler or not sum(inputs.response_lengths):
        return values.sum() * 0.0, {}
    batch = shard.batch(indices, device, images=False)
    return value_loss(args, batch, inputs.per_sample(values), reducer_of(args, batch, inputs.response_lengths))


def add_metrics(sums: dict[str, Tensor], metrics: Mapping[str, Tensor], device: torch.device) -> None:
    """Add the metrics of a micro-batch in place; of a largest value (`is_largest`) keep the larger one."""
    for name, value in metrics.items():
        so_far = sums.get(name, torch.zeros((), device=device))
        sums[name] = torch.maximum(so_far, value) if is_largest(name) else so_far + value


def mean_over_ranks(sums: dict[str, Tensor], denominator: int, group: dist.ProcessGroup | None = None) -> Metrics:
    """Sum each metric over the ranks of ``group`` and divide; a rank without samples contributes nothing.

    A largest value (`is_largest`) is the largest of all ranks. The values leave the device together.
    """
    values = torch.stack([value.double().reshape(()) for value in sums.values()]).tolist() if sums else []
    local: Metrics = dict(zip(sums, values, strict=True))
    gathered: list[Metrics | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, local, group=group)
    names = sorted({name for metrics in gathered if metrics for name in metrics})
    results = {name: [metrics[name] for metrics in gathered if metrics and name in metrics] for name in names}
    return {name: max(values) if is_largest(name) else sum(values) / denominator for name, values in results.items()}


logger = logging.getLogger(__name__)


def held_back(args: Arguments, metrics: Mapping[str, float]) -> dict[str, float]:
    """Return ``{HELD: 1.0}`` if the loss's metrics, equal on all ranks, blow a fuse, else 0.0; empty without fuses."""
    if not args.fuses:
        return {}
    cause = blown(args.fuses, {f"{OF_THE_LOSS}{name}": value for name, value in metrics.items()})
    if cause is not None:
        logger.error("fuse %s: skipping this optimizer step, the weights stay unchanged", cause)
    return {HELD: float(cause is not None)}
