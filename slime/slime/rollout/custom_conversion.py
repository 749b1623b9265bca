"""Training data from a plugin: ``fn(args, samples) -> dict of lists``, instead of :func:`slime.rollout.train_data.convert`.

Guarantee: data passed to the trainer has passed the checks of the core's own conversion. Anything else is an error that
names the contract clause, the entry and the key. Arrays and tuples with one entry per sample become lists, and
``total_lengths`` is added.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from slime.args import Arguments
from slime.exceptions import PluginError
from slime.rollout.train_data import (
    TrainDataError,
    check_response,
    check_rewards,
    check_token_lists,
    image_arrays,
    plain_list,
    refuse_unsupported,
    replayed_experts,
)
from slime.utils.streams import carried
from slime.utils.types import EXPERTS, IMAGES, Sample

REQUIRED_KEYS = ("tokens", "response_lengths", "rewards", "loss_masks")


class ConversionError(PluginError):
    """A conversion function breaks a clause.

    Attributes:
        clause: id of the clause, such as ``convert-4``.
        detail: what was found.
    """

    def __init__(self, clause: str, where: str, detail: str) -> None:
        super().__init__(f"clause {clause}: {where}: {detail}")
        self.clause, self.where, self.detail = clause, where, detail

    def __reduce__(self):
        """Make the error picklable, so that Ray can transfer it."""
        return type(self), (self.clause, self.where, self.detail)


def convert_with(
    function: Callable[[Arguments, list[Sample]], dict[str, Any]], args: Arguments, samples: list[Sample]
) -> dict[str, Any]:
    """Return the checked training data that ``function`` makes of ``samples``, with ``total_lengths``.

    Raises:
        ConversionError: the data break a clause; the message names what is missing or wrong.
    """
    data = function(args, samples)
    try:
        return checked(args, data)
    except TrainDataError as error:
        where = f"conversion function {getattr(function, '__name__', repr(function))}"
        raise ConversionError(error.clause, where, str(error)) from error


def checked(args: Arguments, data: Any) -> dict[str, Any]:
    """Return ``data`` as plain lists, with ``total_lengths``, or raise TrainDataError."""
    if not isinstance(data, dict):
        raise TrainDataError("convert-4", f"it must return a dict of lists, not {type(data).__name__}")
    missing = [key for key in REQUIRED_KEYS if key not in data]
    if missing:
        has = ", ".join(sorted(data)) or "no keys"
        raise TrainDataError("convert-4", f"it returned no {', '.join(missing)}; it has {has}")
    without_length = [key for key in REQUIRED_KEYS if not hasattr(data[key], "__len__")]
    if without_length:
        text = ", ".join(f"{key} is {data[key]!r}" for key in without_length)
        raise TrainDataError("convert-4", f"{text}, not a list with an entry per sample")
    count = len(data["tokens"])
    if not count:
        raise TrainDataError("convert-4", "it returned no samples to train on")
    uneven = {key: len(data[key]) for key in REQUIRED_KEYS if len(data[key]) != count}
    if uneven:
        raise TrainDataError("convert-4", f"it returned {count} tokens entries and {uneven}")
    data = {key: _as_list(values, count) for key, values in data.items()}
    lacking = {"tokens": False} | {
        stream.name: stream.presence != "always"
        for _, stream in carried()
        if stream.per_token and data.get(stream.name) is not None
    }
    data |= {
        key: [_token_list(key, index, values, may_lack) for index, values in enumerate(data[key])]
        for key, may_lack in lacking.items()
    }
    numbered = data.get("rollout_ids")
    if numbered is not None and len(numbered) != count:
        raise TrainDataError("convert-4", f"rollout_ids has {len(numbered)} entries for {count} samples")
    names = [f"entry {index}" for index in range(count)]
    refuse_unsupported("the batch", data)
    images, experts = data.pop(IMAGES, None), data.pop(EXPERTS, None)
    if experts is not None and (not hasattr(experts, "__len__") or len(experts) != count):
        raise TrainDataError("convert-8", f"{EXPERTS} is not a list with an entry for each of {count} samples")
    if images is not None:
        if not hasattr(images, "__len__") or len(images) != count:
            raise TrainDataError("convert-9", f"{IMAGES} is not a list with an entry for each of {count} samples")
        arrays = [image_arrays(name, inputs) for name, inputs in zip(names, images, strict=True)]
        data |= {IMAGES: arrays} if any(value is not None for value in arrays) else {}
    for name, tokens, length, mask in zip(
        names, data["tokens"], data["response_lengths"], data["loss_masks"], strict=True
    ):
        if not hasattr(length, "__index__"):
            raise TrainDataError("convert-4", f"{name}: response_length {length!r} is not a whole number")
        check_response(name, tokens, length, mask)
    check_rewards(names, data["rewards"])
    check_token_lists(names, data, data["response_lengths"])
    data |= replayed_experts(args, names, experts or [None] * count, data["tokens"], data["loss_masks"])
    return {**data, "total_lengths": [len(tokens) for tokens in data["tokens"]]}


def _token_list(key: str, index: int, values: Any, may_lack: bool) -> list[Any] | None:
    """Return a list with an entry per token, or None if a sample may lack it."""
    if not (values is None and may_lack) and not hasattr(values, "__len__"):
        raise TrainDataError("convert-4", f"entry {index}: {key} is {values!r}, not a list with an entry per token")
    return plain_list(values)


def _as_list(values: Any, count: int) -> Any:
    """Return a list of any container with one entry per sample; return everything else unchanged."""
    if hasattr(values, "tolist") and getattr(values, "ndim", 0) and len(values) == count:
        return values.tolist()
    return list(values) if isinstance(values, tuple) and len(values) == count else values
