"""Measure a rank's time and memory: PyTorch profiler traces, and its GPU allocations.

Guarantee: without ``--use-pytorch-profiler`` and ``--record-memory-history`` nothing is measured. A trace is a file that
``chrome://tracing`` and Perfetto read; a memory snapshot one that https://pytorch.org/memory_viz reads.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from slime.args import Arguments

logger = logging.getLogger(__name__)

# Phase of the trainer, and its value of --profile-target.
TARGETS = {"train": "train_overall", "actor_train": "train_actor", "log_probs": "train_log_probs"}


@contextlib.contextmanager
def profiled(args: Arguments, phase: str, rollout_id: int, rank: int) -> Iterator[None]:
    """Write ``<run-dir>/profile/<target>_rollout<r>_rank<k>.json`` if flags request this phase and rollout."""
    target = TARGETS[phase]
    if args.profile_target != target or not args.profile_step_start <= rollout_id < args.profile_step_end:
        yield
        return
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with profile(activities=activities, record_shapes=True, profile_memory=True) as trace:
        yield
    file = Path(args.run_dir) / "profile" / f"{target}_rollout{rollout_id}_rank{rank}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    trace.export_chrome_trace(str(file))


class Clock:
    """Seconds of a rank's phases since they were last taken; the phases of `TARGETS` may be traced."""

    def __init__(self, args: Arguments, rank: int) -> None:
        self._args, self._rank = args, rank
        self._rollout_id = 0
        self.seconds: dict[str, float] = {}

    def begin(self, rollout_id: int) -> None:
        """Name traces after this rollout from now on."""
        self._rollout_id = rollout_id

    @contextlib.contextmanager
    def timed(self, phase: str) -> Iterator[None]:
        """Add the block's seconds to ``phase``."""
        start = time.perf_counter()
        traced = self._args.use_pytorch_profiler and phase in TARGETS
        with profiled(self._args, phase, self._rollout_id, self._rank) if traced else contextlib.nullcontext():
            yield
        self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    def take(self) -> dict[str, float]:
        """Return the seconds as metrics and begin anew."""
        seconds, self.seconds = self.seconds, {}
        return {f"perf/{phase}_time": value for phase, value in seconds.items()}


MAX_ENTRIES = 1_000_000
"""Number of newest events to keep."""


class MemoryHistory:
    """Record who allocated what on a rank's GPU: ``--record-memory-history``. Owned by one rank.

    Guarantees: recording begins before the model is built and ends with the snapshot, which is written once: after
    the rollouts of ``--memory-snapshot-num-steps``, or when the rank runs out of memory. The file is what
    https://pytorch.org/memory_viz reads.
    """

    def __init__(self, args: Arguments, rank: int) -> None:
        """Start recording."""
        self._file = Path(args.memory_snapshot_dir).resolve() / f"rank{rank}_{args.memory_snapshot_path}"
        self._left = args.memory_snapshot_num_steps or 1
        self._records = True
        torch.cuda.memory._record_memory_history(max_entries=MAX_ENTRIES)

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Write the snapshot if the block runs out of memory."""
        try:
            yield
        except torch.OutOfMemoryError:
            self._write()
            raise

    def trained(self) -> None:
        """Count a trained rollout, and write the snapshot when it is due."""
        self._left -= 1
        if self._left <= 0:
            self._write()

    def _write(self) -> None:
        if not self._records:
            return
        self._records = False
        self._file.parent.mkdir(parents=True, exist_ok=True)
        torch.cuda.memory._dump_snapshot(str(self._file))
        torch.cuda.memory._record_memory_history(enabled=None)
        logger.info("memory snapshot: %s", self._file)
