"""Copies of this rank's parameters in host memory, and running the model with them for a while."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

Snapshot = dict[str, Tensor]


def take(model: Any) -> Snapshot:
    """Copy every parameter of ``model`` to the CPU."""
    return {name: parameter.detach().to("cpu", copy=True) for name, parameter in model.named_parameters()}


@torch.no_grad()
def put(model: Any, snapshot: Snapshot) -> None:
    """Give ``model`` the values of ``snapshot``, in place."""
    for name, parameter in model.named_parameters():
        parameter.copy_(snapshot[name])


@contextmanager
def weights_of(model: Any, snapshot: Snapshot) -> Iterator[None]:
    """Within the context ``model`` has the weights of ``snapshot``; afterwards exactly its own."""
    own = take(model)
    put(model, snapshot)
    try:
        yield
    finally:
        put(model, own)
