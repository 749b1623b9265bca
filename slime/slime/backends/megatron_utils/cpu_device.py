"""Megatron-core on a machine without CUDA.

Megatron-core names the device "cuda" where it means "the device of the model": in tensors it makes itself, in
``torch.cuda.current_device()`` and in checks of a tensor's type. Guarantee: inside :func:`model_device` on a CPU those names
mean the CPU, and outside nothing of torch is changed but two functions of ``torch.cuda`` that have no meaning there.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

CPU = torch.device("cpu")


class _CudaMeansCpu(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs = kwargs | {"device": CPU}
        result = func(*args, **kwargs)
        if func is torch.Tensor.type and isinstance(result, str):
            return result.replace("torch.", "torch.cuda.", 1)
        return result


def use_cpu() -> None:
    """Let this process run Megatron-core on the CPU: its current device, and random states that are torch's own.

    Nothing here draws numbers on a CUDA device, so its random state, which recomputation keeps, is empty.
    """
    from megatron.core.tensor_parallel import random

    torch.cuda.current_device = lambda: CPU  # pyright: ignore[reportAttributeAccessIssue]
    torch.cuda.synchronize = lambda device=None: None
    random._get_cuda_rng_state = lambda *_, **__: torch.empty(0, dtype=torch.uint8)
    random._set_cuda_rng_state = lambda *_, **__: None
    random.initialize_rng_tracker(inference_rng_tracker=True)


def model_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the context to call Megatron-core in."""
    return contextlib.nullcontext() if device.type == "cuda" else _CudaMeansCpu()
