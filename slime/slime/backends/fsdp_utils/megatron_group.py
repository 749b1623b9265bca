"""Losses written for Megatron ask it for the tensor-parallel group; under FSDP that is a group of this rank alone."""

from __future__ import annotations

import sys


def group_of_one() -> None:
    """Initialise Megatron's groups with no parallelism of the model, where a plugin has imported Megatron; collective."""
    state = sys.modules.get("megatron.core.parallel_state")
    if state is not None and not state.model_parallel_is_initialized():
        state.initialize_model_parallel(tensor_model_parallel_size=1)
