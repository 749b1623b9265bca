"""Traces of PyTorch's profiler: ``--use-pytorch-profiler`` over some rollouts of one phase.

Guarantee: without the flag nothing is measured; a trace is a file that ``chrome://tracing`` and Perfetto read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from slime.args import Arguments

# Phase of the trainer, and the value of --profile-target that means it.
TARGETS = {"train": "train_overall", "actor_train": "train_actor", "log_probs": "train_log_probs"}


@contextlib.contextmanager
def profiled(args: Arguments, phase: str, rollout_id: int, rank: int) -> Iterator[None]:
    """Write ``<run-dir>/profile/<target>_rollout<r>_rank<k>.json`` when this phase of this rollout is asked for."""
    target = TARGETS[phase]
    wanted = args.use_pytorch_profiler and args.profile_target == target
    if not wanted or not args.profile_step_start <= rollout_id < args.profile_step_end:
        yield
        return
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities, record_shapes=True, profile_memory=True) as trace:
        yield
    file = Path(args.run_dir) / "profile" / f"{target}_rollout{rollout_id}_rank{rank}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(file))
