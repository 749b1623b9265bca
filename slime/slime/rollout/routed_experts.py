"""The experts that engines sampled with (``--use-rollout-routing-replay``), from request to training data.

``Sample.rollout_routed_experts`` is ``[rows, layers, K]`` int16: row ``i`` has the experts of token ``i``, from which
token ``i + 1`` was sampled. Guarantees: a row is what an engine reported when it sampled the next token or read it as
part of a prompt. It is never recomputed; a continued response requests only the missing rows. Training data have a row
for each token but the last. A missing row that no trained token depends on becomes `OWN_CHOICE`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from slime.args import Arguments
from slime.rollout.train_data_checks import TrainDataError
from slime.utils.routed_experts import ExpertShape, expert_shape
from slime.utils.types import EXPERTS, OWN_CHOICE, Sample


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
