"""Training data made by a plugin: ``fn(args, samples) -> dict of lists``, in place of :func:`slime.rollout.train_data.convert`.

Guarantee: what goes on to the trainer has ``tokens``, ``response_lengths``, ``rewards`` and ``loss_masks``, one entry per
sample and masks as long as the responses, and ``total_lengths``; anything else is an error that names the key.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from typing import Any

from slime.exceptions import PluginError
from slime.utils.types import Sample

REQUIRED_KEYS = ("tokens", "response_lengths", "rewards", "loss_masks")


def convert_with(
    function: Callable[[Namespace, list[Sample]], dict[str, Any]], args: Namespace, samples: list[Sample]
) -> dict[str, Any]:
    """Return the training data that ``function`` makes of ``samples``, checked, with ``total_lengths``.

    Raises:
        PluginError: naming what is missing or does not fit.
    """
    where = f"conversion function {getattr(function, '__name__', repr(function))}"
    data = function(args, samples)
    if not isinstance(data, dict):
        raise PluginError(f"{where} must return a dict of lists, not {type(data).__name__}")
    missing = [key for key in REQUIRED_KEYS if key not in data]
    if missing:
        raise PluginError(f"{where} returned no {', '.join(missing)}; it has {', '.join(sorted(data)) or 'no keys'}")
    count = len(data["tokens"])
    uneven = {key: len(data[key]) for key in REQUIRED_KEYS if len(data[key]) != count}
    if uneven:
        raise PluginError(f"{where} returned {count} tokens entries and {uneven}")
    for index, (tokens, length, mask) in enumerate(
        zip(data["tokens"], data["response_lengths"], data["loss_masks"], strict=True)
    ):
        if not 0 <= length <= len(tokens) or len(mask) != length:
            raise PluginError(
                f"{where}: entry {index} has {len(tokens)} tokens, response_lengths {length} and {len(mask)} loss_masks entries"
            )
    return {**data, "total_lengths": [len(tokens) for tokens in data["tokens"]]}
