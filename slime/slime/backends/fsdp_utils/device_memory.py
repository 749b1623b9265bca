"""What a rank with FSDP2 has in the memory of its device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Iterator[torch.Tensor]:
    """Yield this rank's parameters, their gradients, the buffers, and the moments of ``optimizer``."""
    cast(FSDPModule, model).reshard()  # a forward pass leaves the root's parameters whole
    for parameter in model.parameters():
        yield parameter
        if parameter.grad is not None:
            yield parameter.grad
    yield from model.buffers()
    for state in optimizer.state.values() if optimizer is not None else ():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))
