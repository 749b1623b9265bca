"""Advantages by a plugin: ``fn(args, rollout)`` sets ``rollout["advantages"]`` and ``rollout["returns"]`` in place.

``rollout`` has the streams an estimator reads, ``kl`` among them. What is missing or has a wrong length is named.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments


def custom_advantages(
    function: Callable[[Arguments, dict[str, Any]], None], args: Arguments, rollout: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """Call ``function`` and return the advantages and returns ``[R_i]`` float32 that it set."""
    function(args, rollout)
    results = []
    for name in ("advantages", "returns"):
        values = rollout.pop(name, None)
        where = f"custom advantage function {getattr(function, '__name__', repr(function))}"
        if values is None:
            raise ValueError(f'{where} did not set rollout["{name}"]')
        tensors = [torch.as_tensor(value, dtype=torch.float32) for value in values]
        found, expected = [len(tensor) for tensor in tensors], list(rollout["response_lengths"])
        if found != expected:
            raise ValueError(f"{where} set {name} of lengths {found} for responses of {expected} tokens")
        results.append(tensors)
    return results[0], results[1]
