"""Megatron's whole model in one process on the CPU, for the conversion tools."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from slime.args import Arguments
from slime.backends.megatron_utils import parallel
from slime.backends.megatron_utils.config import Shape, read_config, shape_of
from slime.backends.megatron_utils.cpu_device import CPU
from slime.backends.megatron_utils.model import build_model, unwrapped


@contextmanager
def one_rank(path: Path, dtype: torch.dtype = torch.float32) -> Iterator[tuple[Any, Shape, torch.device]]:
    """Yield the unwrapped model with the weights of Hugging Face folder ``path``, its shape and its device."""
    args = Arguments(train_backend="megatron", device="cpu", transformer_impl="local")
    shape = shape_of(read_config(path))
    with tempfile.TemporaryDirectory() as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        try:
            parallel.join(args, CPU)
            model, _ = build_model(args, str(path), device=CPU, dtype=dtype)
            yield unwrapped(model), shape, CPU
        finally:
            parallel.leave()
            dist.destroy_process_group()
