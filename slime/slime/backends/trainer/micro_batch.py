"""From a shard to the summed loss of a micro-batch, for any model that gives log probabilities, logits or values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from slime.algorithms.losses import LOSSES
from slime.algorithms.losses.custom import custom_loss, reads_response_rows
from slime.algorithms.losses.reduce import Reducer, make_reducer
from slime.algorithms.losses.supervised import value_loss
from slime.args import Arguments
from slime.backends.trainer.packing import MicroBatch, build
from slime.backends.trainer.rollout_data import IMAGES, RolloutShard
from slime.logprobs.response_rows import ResponseRows
from slime.utils.metric_names import is_largest
from slime.utils.misc import load_function
from slime.utils.streams import TrainBatch

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
    function = load_function(args.custom_loss_function_path)

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

    A largest value (`is_largest`) is the largest of all ranks.
    """
    local = {name: float(value) for name, value in sums.items()}
    gathered: list[Metrics | None] = [None] * dist.get_world_size(group)
    dist.all_gather_object(gathered, local, group=group)
    names = sorted({name for metrics in gathered if metrics for name in metrics})
    found = {name: [metrics[name] for metrics in gathered if metrics and name in metrics] for name in names}
    return {name: max(values) if is_largest(name) else sum(values) / denominator for name, values in found.items()}
