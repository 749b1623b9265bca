"""What a rank with FSDP2 has in the memory of its device."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


def free_whole_parameters(model: nn.Module) -> None:
    """Leave only this rank's shards of a model of any number of ranks; a forward pass leaves the root's parameters whole."""
    if isinstance(model, FSDPModule):
        model.reshard()


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[torch.Tensor]:
    """Yield this rank's parameters, their gradients, the buffers, and the moments of ``optimizer``."""
    free_whole_parameters(model)
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    yield from model.buffers()
    for state in optimizer.state.values() if optimizer is not None else ():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
