"""Megatron's process groups, and what of them is plain arithmetic of the arguments.

Ranks are numbered with the tensor-parallel rank running fastest, then data, then pipeline (Megatron's order
"tp-cp-ep-dp-pp"). Nothing is imported from Megatron before it is used.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from slime.args import Arguments

if TYPE_CHECKING:
    import torch


def model_parallel_size(args: Arguments) -> int:
    """Ranks that hold one copy of the model."""
    return args.tensor_model_parallel_size * args.pipeline_model_parallel_size * args.context_parallel_size


def data_parallel_size(args: Arguments, world_size: int) -> int:
    """Copies of the model, each with its own samples; 1 per rank without Megatron."""
    return world_size // model_parallel_size(args) if args.train_backend == "megatron" else world_size


def data_parallel_rank(args: Arguments, rank: int, world_size: int) -> int:
    """Which shard of the data ``rank`` trains on."""
    if args.train_backend != "megatron":
        return rank
    inner = args.tensor_model_parallel_size * args.context_parallel_size
    return rank // inner % data_parallel_size(args, world_size)


def shard_of_rank(args: Arguments, shards: list[Any], world_size: int) -> list[Any]:
    """Return what each rank trains on, given one shard per copy of the model."""
    return [shards[data_parallel_rank(args, rank, world_size)] for rank in range(world_size)]


def padded_length(length: int, ranks: int) -> int:
    """Tokens of a sample of ``length`` tokens with its padding to two chunks for each of ``ranks`` context-parallel ranks."""
    return length if ranks == 1 else -(-length // (2 * ranks)) * 2 * ranks


def groups() -> Any:
    """Megatron's process groups and this rank's place in them: ``megatron.core.parallel_state``."""
    from megatron.core import parallel_state

    return parallel_state


def join(args: Arguments, device: torch.device) -> None:
    """Make Megatron's groups out of the default group, and seed what they split."""
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
