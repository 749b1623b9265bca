"""Every stream of values from a sample to the batch of a loss, declared once.

Guarantees: a new stream is one declaration here plus the code that reads it. These follow from `STREAMS`:
* the checks of `Sample`, and which lists grow with its response
* the columns of the ledger
* training data, their checks and the tensors of a rank
* the part of a batch that a context-parallel rank takes
* the keys of a custom loss's batch, and the data that plugins are checked with

A stream that samples carry is a field of `SampleStreams`, declared with its type and rules. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_type_hints

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Stream:
    """A field of training data with an entry per sample.

    Attributes:
        name: key in training data and in the batch of a loss; default: the attribute's name.
        attribute: attribute of `Sample` that holds it; None if the conversion or the trainer computes it.
        dtype: dtype of its tensors. Per-sample values stay as they are.
        per_token: whether an entry has one value per response token, instead of a single value.
        top_k: whether there are K values per token.
        grows: whether appended tokens extend it. Other streams are computed for a whole response.
        finite: whether NaN and infinity are refused.
        presence: whether samples with a response always have it, all or none have it, or each may have it. A sample
            without it contributes zero to the terms that read it.
        column: whether the ledger has a column for it, float64 or int32; this needs a migration. Others are in the
            sample's JSON.
        in_contract: whether every batch of a custom loss has the key, with None if the rollout has no such stream.
        logged: whether the trainer logs its mean over trained tokens.

    Example:
        >>> carried_by_samples = {stream.name: attribute for attribute, stream in carried()}
        >>> carried_by_samples["loss_masks"]
        'loss_mask'
        >>> [stream.name for stream in STREAMS if stream.top_k and stream.in_contract]
        ['teacher_topk_log_probs', 'teacher_topk_indices']
    """

    name: str = ""
    attribute: str | None = None
    dtype: Literal["float32", "int64"] = "float32"
    per_token: bool = True
    top_k: bool = False
    grows: bool = False
    finite: bool = False
    presence: Literal["always", "all or none", "optional"] = "optional"
    column: bool = False
    in_contract: bool = False
    logged: bool = False


@dataclass(kw_only=True)
class SampleStreams:
    """Streams that a sample carries: lists, or NumPy arrays and tensors where the type is Any."""

    loss_mask: Annotated[
        list[int] | None, Stream("loss_masks", dtype="int64", grows=True, presence="always", in_contract=True)
    ] = None
    rollout_log_probs: Annotated[
        list[float] | None,
        Stream(grows=True, finite=True, presence="all or none", column=True, in_contract=True, logged=True),
    ] = None
    teacher_log_probs: Annotated[Any, Stream(finite=True, column=True, in_contract=True, logged=True)] = None
    teacher_topk_log_probs: Annotated[Any, Stream(top_k=True, column=True, in_contract=True)] = None
    teacher_topk_indices: Annotated[Any, Stream(dtype="int64", top_k=True, column=True, in_contract=True)] = None
    rollout_topk_log_probs: Annotated[Any, Stream(top_k=True, column=True)] = None
    train_metadata: Annotated[dict[str, Any] | None, Stream("metadata", per_token=False)] = None


def _of_samples() -> Iterator[Stream]:
    for attribute, hint in get_type_hints(SampleStreams, include_extras=True).items():
        [declared] = hint.__metadata__
        yield replace(declared, name=declared.name or attribute, attribute=attribute)


_OF_THE_CONVERSION = (
    Stream("total_lengths", per_token=False, presence="always", in_contract=True),
    Stream("response_lengths", per_token=False, presence="always", in_contract=True),
    Stream("rewards", per_token=False, presence="always"),
    Stream("raw_reward", per_token=False),
    Stream("truncated", per_token=False),
    Stream("sample_indices", per_token=False),
    Stream("group_indices", per_token=False),
    Stream("rollout_ids", per_token=False),
    Stream("rollout_mask_sums", per_token=False),
    Stream("round_number", per_token=False),
    Stream("step_wise_step_rewards", per_token=False),
    Stream("step_wise_step_token_spans", per_token=False),
    Stream("step_wise_step_indices", per_token=False),
)
_OF_THE_TRAINER = (
    Stream("log_probs", in_contract=True, logged=True),
    Stream("ref_log_probs", in_contract=True, logged=True),
    Stream("values", in_contract=True, logged=True),
    Stream("advantages", in_contract=True, logged=True),
    Stream("returns", in_contract=True, logged=True),
    Stream("kl", logged=True),
    Stream("entropy", logged=True),
)
STREAMS: tuple[Stream, ...] = (*_OF_THE_CONVERSION, *_of_samples(), *_OF_THE_TRAINER)
"""Read it as ``streams.STREAMS`` on use, not at import, because a test declares another stream here."""


class TrainBatch(TypedDict):
    """The dict that a loss gets: streams of a micro-batch, one tensor ``[R_i]`` or ``[R_i, K]`` per sample, on the device.

    The types describe streams that exist. A key that the rollout lacks is missing, or None in the batch of a custom
    loss; ``| None`` marks the streams that the built-in losses check for that.

    Example:
        >>> import torch
        >>> batch: TrainBatch = {
        ...     "response_lengths": [2, 1],
        ...     "loss_masks": [torch.tensor([1, 0]), torch.tensor([1])],
        ...     "advantages": [torch.tensor([0.5, 0.5]), torch.tensor([-1.0])],
        ... }
        >>> [float((a * mask).sum()) for a, mask in zip(batch["advantages"], batch["loss_masks"])]
        [0.5, -1.0]
    """

    tokens: Tensor
    unconcat_tokens: list[Tensor]
    packed_seq_params: Any
    full_loss_masks: Tensor
    max_seq_lens: Any
    multimodal_train_inputs: list[dict[str, Tensor] | None]
    multimodal_num_items: list[int]
    total_lengths: list[int]
    response_lengths: list[int]
    rewards: list[float]
    raw_reward: list[float]
    truncated: list[int]
    sample_indices: list[int]
    group_indices: list[int]
    rollout_ids: list[int]
    rollout_mask_sums: list[float] | None
    round_number: list[Any]
    step_wise_step_rewards: list[list[float]]
    step_wise_step_token_spans: list[list[list[int]]]
    step_wise_step_indices: list[list[int]]
    metadata: list[dict[str, Any] | None]
    loss_masks: list[Tensor]
    rollout_log_probs: list[Tensor] | None
    teacher_log_probs: list[Tensor | None]
    teacher_topk_log_probs: list[Tensor | None] | None
    teacher_topk_indices: list[Tensor | None] | None
    rollout_topk_log_probs: list[Tensor | None] | None
    log_probs: list[Tensor]
    ref_log_probs: list[Tensor]
    values: list[Tensor]
    advantages: list[Tensor]
    returns: list[Tensor]
    kl: list[Tensor]
    entropy: list[Tensor]


def carried() -> list[tuple[str, Stream]]:
    """Return the streams that samples carry, each with its attribute of `Sample`."""
    return [(stream.attribute, stream) for stream in STREAMS if stream.attribute is not None]


def computed() -> list[str]:
    """Return the names of the per-token streams that the trainer computes."""
    return [stream.name for stream in STREAMS if stream.per_token and stream.attribute is None]


def batch_keys() -> tuple[str, ...]:
    """Return the keys in every batch of a custom loss."""
    return (
        *("tokens", "unconcat_tokens", "packed_seq_params", "full_loss_masks"),
        *(stream.name for stream in STREAMS if stream.in_contract),
        *("max_seq_lens", "multimodal_train_inputs", "multimodal_num_items"),
    )
