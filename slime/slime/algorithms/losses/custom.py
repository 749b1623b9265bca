"""Call a custom loss function as its contract says, and check its result.

``fn(args, batch, logits, sum_of_sample_mean) -> (scalar, dict of detached scalars)``.

* ``batch`` has every key of `slime.utils.streams.batch_keys`. A key that the rollout lacks has the value None.
* ``logits`` is ``[1, T, V]`` float32 of the packed micro-batch, not divided by the temperature.
* A context-parallel rank (Megatron) gets the logits of its own tokens and its part of every per-token list. Its loss and
  metrics are partial; the trainer sums them over the ranks.
* ``multimodal_train_inputs`` has per sample a dict of tensors (``pixel_values``, ``image_grid_thw``) or None.
  ``multimodal_num_items`` has each sample's number of images.

Mark a loss with :func:`from_response_rows` if it reads its logits only through the helpers of
``slime.logprobs.packed_logits`` and ``policy_loss_of_logits``. The trainer then passes the rows that predict the response. The
helpers compute their logits in chunks, so the full logits never exist.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import torch
from torch import Tensor

from slime.algorithms.losses.reduce import Reducer
from slime.args import Arguments
from slime.logprobs.response_rows import ResponseRows
from slime.utils.misc import is_tuple
from slime.utils.streams import TrainBatch, batch_keys

CustomLoss = Callable[[Arguments, TrainBatch, Any, Reducer], object]
"""A plugin that returns a scalar and a dict of metrics; :func:`custom_loss` checks this."""
Function = TypeVar("Function", bound=Callable[..., Any])
_MARK = "from_response_rows"


def from_response_rows(function: Function) -> Function:
    """Mark a custom loss that reads its logits only through the helpers, and return it."""
    setattr(function, _MARK, True)
    return function


def reads_response_rows(function: Any) -> bool:
    """Return whether ``function`` is marked with :func:`from_response_rows`."""
    return getattr(function, _MARK, False) is True


def full_loss_mask(batch: Mapping[str, Any]) -> Tensor:
    """Return ``[1, T]``: the response masks at the positions that predict response tokens, zero elsewhere."""
    parts: list[Tensor] = []
    for total, response, mask in zip(
        batch["total_lengths"], batch["response_lengths"], batch["loss_masks"], strict=True
    ):
        whole = torch.zeros(total, dtype=mask.dtype, device=mask.device)
        whole[total - response - 1 : total - 1] = mask
        parts.append(whole)
    return torch.cat(parts).unsqueeze(0)


def contract_batch(batch: Mapping[str, Any]) -> TrainBatch:
    """Return ``batch`` with every key of the contract.

    ``batch`` has ``unconcat_tokens`` and the per-sample lists. That of a context-parallel rank also has its own ``tokens``
    and ``full_loss_masks``.
    """
    result: dict[str, Any] = {**dict.fromkeys(batch_keys()), **batch}
    if "tokens" not in batch:
        result["tokens"] = torch.cat(batch["unconcat_tokens"]).unsqueeze(0)
        result["full_loss_masks"] = full_loss_mask(batch)
    return cast(TrainBatch, result)


def custom_loss(
    function: CustomLoss, args: Arguments, batch: TrainBatch, logits: Tensor | ResponseRows, reduce: Reducer
) -> tuple[Tensor, dict[str, Tensor]]:
    """Call ``function`` and return its loss and metrics, including the metric ``loss``.

    Raises:
        TypeError: the result is not a tensor and metrics.
        ValueError: the loss is not a scalar.
    """
    result = function(args, contract_batch(batch), logits, reduce)
    name = getattr(function, "__name__", repr(function))
    if not (is_tuple(result) and len(result) == 2 and isinstance(result[0], Tensor)):
        raise TypeError(f"custom loss {name} must return (scalar tensor, dict of metrics), not {type(result).__name__}")
    loss, metrics = result
    if loss.numel() != 1:
        raise ValueError(f"custom loss {name} returned a loss of shape {tuple(loss.shape)}; reduce it to a scalar")
    detached = {key: torch.as_tensor(value).detach().float() for key, value in metrics.items()}
    return loss.reshape(()), {"loss": loss.detach().reshape(())} | detached
