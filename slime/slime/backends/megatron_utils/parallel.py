"""Join and leave Megatron's process groups. Megatron is imported only on use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

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

    from slime.backends.megatron_utils.cpu_device import use_cpu

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
