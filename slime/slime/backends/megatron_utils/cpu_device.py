"""Megatron-core on a machine without CUDA.

Megatron-core writes "cuda" for "the model's device": in tensors that it creates, in ``torch.cuda.current_device()`` and
in checks of a tensor's type. Guarantee: inside :func:`model_device` on a CPU those names mean the CPU. Outside, only
two ``torch.cuda`` functions, which have no meaning there, are changed.
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
    """Let this process run Megatron-core on the CPU: patch the current device and the random states.

    Nothing draws random numbers on a CUDA device here, so the CUDA state that recomputation saves is empty.
    """
    from megatron.core.tensor_parallel import random

    torch.cuda.current_device = lambda: CPU  # pyright: ignore[reportAttributeAccessIssue]
    torch.cuda.synchronize = lambda device=None: None
    random._get_cuda_rng_state = lambda *_, **__: torch.empty(0, dtype=torch.uint8)
    random._set_cuda_rng_state = lambda *_, **__: None
    random.initialize_rng_tracker(inference_rng_tracker=True)


def model_device(device: torch.device) -> contextlib.AbstractContextManager[Any]:
    """Return the context manager in which to call Megatron-core."""
    return contextlib.nullcontext() if device.type == "cuda" else _CudaMeansCpu()
