"""Checks on every sample of training data, from the core's conversion or a plugin's.

Pure. Each function raises :class:`TrainDataError` with the contract clause (`slime.contract.clauses`) that a plugin
broke.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from slime.utils.streams import carried

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
