"""Join and leave Megatron's process groups. Megatron is imported only on use.

On a machine without CUDA: Megatron-core writes "cuda" for "the model's device": in tensors that it creates, in ``torch.cuda.current_device()`` and
in checks of a tensor's type. Guarantee: inside :func:`model_device` on a CPU those names mean the CPU. Outside, only
two ``torch.cuda`` functions, which have no meaning there, are changed.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode

from slime.args import Arguments

if TYPE_CHECKING:
    import torch


def groups() -> Any:
    """Return ``megatron.core.parallel_state``: the process groups and this rank's place in them."""
    from megatron.core import parallel_state

    return parallel_state


def join(args: Arguments, device: torch.device) -> None:
    """Create Megatron's groups from the default group, and seed their random states."""
    from megatron.core import tensor_parallel

    if device.type == "cuda":
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "1")
    groups().initialize_model_parallel(
        tensor_model_parallel_size=args.tensor_model_parallel_size,
        pipeline_model_parallel_size=args.pipeline_model_parallel_size,
        context_parallel_size=args.context_parallel_size,
        expert_model_parallel_size=args.expert_model_parallel_size,
        expert_tensor_parallel_size=args.expert_tensor_parallel_size,
        distributed_timeout_minutes=args.distributed_timeout_minutes,
        create_gloo_process_groups=device.type == "cuda",
    )
    if device.type == "cuda":
        tensor_parallel.model_parallel_cuda_manual_seed(args.seed)
    else:
        use_cpu()


def leave() -> None:
    """Leave Megatron's groups."""
    if groups().model_parallel_is_initialized():
        groups().destroy_model_parallel()


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
