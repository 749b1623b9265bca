"""How new weights reach the engines. One transport per file, behind :class:`WeightSync`."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from slime.args import Arguments

if TYPE_CHECKING:
    from torch import Tensor

LOADER = "slime.weight_sync.engine_loader.load"
"""What runs in an engine: value of SGLang's ``--custom-weight-loader``, and ``load_format`` of a request to it."""


def uses_loader(args: Arguments) -> bool:
    """Whether policy engines have to be started with :data:`LOADER`."""
    shared = args.update_weight_transport == "shared"
    delta = args.update_weight_mode == "delta"
    return shared or delta or bool(args.check_weight_update_equal)


STAGES_REFUSED = (
    "weights by broadcast or in shared memory do not reach SGLang's pipeline stages, of which the first has to be done with a push "
    "before the next hears of it; use one stage, or --update-weight-mode full with --update-weight-transport disk"
)


def misses_stages(args: Arguments) -> bool:
    """Whether the run pushes weights in a way that an engine of several pipeline stages cannot take.

    SGLang hands a request to the next stage when a stage is done with it, and all stages take the same ranks of a group.
    """
    pushes = not (args.debug_rollout_only or args.debug_train_only)
    disk = args.update_weight_transport == "disk"
    return pushes and not disk and args.update_weight_mode != "adapter"


def shares_gpus(args: Arguments) -> bool:
    """Whether trainer and engines are on the same GPUs, between which NCCL has no connection."""
    return bool(args.share_gpu or args.colocate)


def on_one_gpu(args: Arguments) -> bool:
    """Return whether trainer and policy engine share one GPU, so that one can open memory of the other."""
    return shares_gpus(args) and bool(args.share_gpu or args.rollout_num_gpus == 1)


def sends_gpu_handles(args: Arguments) -> bool:
    """Return whether a push sends CUDA IPC handles of the trainer's memory."""
    return args.update_weight_transport == "shared" and on_one_gpu(args)


ADAPTER_NAME = re.compile(r"weights-(\d+)-([0-9a-f]{8})-(\d+)")
"""Weight version, :func:`maker` and number of a push."""


def maker(args: Arguments) -> str:
    """Return the mark of this run in the names of its adapters; the same when its trainer is started again."""
    return hashlib.sha256(os.path.realpath(args.run_dir).encode()).hexdigest()[:8]


def adapter_version(name: str | None) -> str | None:
    """Return the weight version of an adapter that a trainer named, None for any other adapter."""
    match = ADAPTER_NAME.fullmatch(name or "")
    return match[1] if match else None


class WeightSync(Protocol):
    """A transport. Every training rank has one, and all ranks call its methods together."""

    def connect(self, engines: list[Any]) -> None:
        """Reach ``engines`` (actor handles) from now on; again after one was started again."""
        ...

    def push(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        """Make ``weights`` live on all engines as ``version``; returns when they are.

        Names are Hugging Face's and all tensors have one dtype. Every rank runs the iterator to its end; rank 0's values count.
        """
        ...

    def close(self) -> None:
        """Let go of the engines without talking to them; they may be gone."""
        ...
