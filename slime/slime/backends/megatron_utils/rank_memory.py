"""A Megatron rank's device tensors, host copies of its weights, and running the model with such a copy."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from slime.backends.megatron_utils.model import unwrapped


def tensors_of(model: Any, optimizer: Any) -> Iterator[Tensor]:
    """Yield parameters (views of Megatron's flat buffers), module buffers, and the optimizer's weights and moments."""
    yield from model.parameters()
    yield from unwrapped(model).buffers()
    for inner in optimizers_of(optimizer):
        for group in inner.param_groups:
            yield from group["params"]
        for state in inner.state.values():
            yield from (value for value in state.values() if isinstance(value, Tensor))


def optimizers_of(optimizer: Any) -> list[Any]:
    """Return torch's optimizers inside Megatron's; none if this rank's part of the model has nothing to train."""
    parts = getattr(optimizer, "chained_optimizers", [optimizer])
    return [part.optimizer for part in parts if part.optimizer is not None]


def gradients_of(model: Any) -> Iterator[Tensor]:
    """Yield the flat gradients, which are zero between two steps."""
    for buffer in [*model.buffers, *model.expert_parallel_buffers]:
        yield buffer.grad_data


Snapshot = dict[str, Tensor]


def take(model: Any) -> Snapshot:
    """Copy every parameter of ``model`` to the CPU."""
    return {name: parameter.detach().to("cpu", copy=True) for name, parameter in model.named_parameters()}


@torch.no_grad()
def put(model: Any, snapshot: Snapshot) -> None:
    """Copy the values of ``snapshot`` into ``model`` in place."""
    for name, parameter in model.named_parameters():
        parameter.copy_(snapshot[name])


@contextmanager
def weights_of(model: Any, snapshot: Snapshot) -> Iterator[None]:
    """Run the block with the weights of ``snapshot``, then restore the model's own exactly."""
    own = take(model)
    put(model, snapshot)
    try:
        yield
    finally:
        put(model, own)
