"""What every training rank has, for policy or critic: a group, a model, an optimizer, a schedule.

A plain class; the trainer makes Ray actors of its subclasses. Unless stated otherwise, all methods are collective over
the ranks of a role.
"""

from __future__ import annotations

import logging
import os
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from slime.args import Arguments
from slime.backends.trainer.lora import check_same_adapters, shape_of_adapters
from slime.backends.trainer.micro_batch import Metrics
from slime.backends.trainer.offload import HostMemory
from slime.backends.trainer.profiling import TARGETS, profiled
from slime.backends.trainer.schedule import Schedule
from slime.backends.trainer.snapshot import Changing, Snapshot
from slime.backends.trainer.trainable import PATTERNS, check_same_parameters
from slime.backends.trainer.wandb_folders import remove_at_the_end
from slime.checkpoints.checkpoint_folder import folder_of, read_meta
from slime.exceptions import CheckpointError, TrainerError
from slime.utils.forwarded_environment import own_of_machine
from slime.utils.metric_names import is_largest
from slime.utils.tcp_store import hosted_store, meet_on_loopback

logger = logging.getLogger(__name__)


class TrainRank(ABC):
    """Owner of the model's shard, its optimizer, its schedule and this rank's random state."""

    role: ClassVar[str] = "policy"
    args: Arguments
    model: Any
    optimizer: Any
    schedule: Schedule
    device: torch.device
    _host_memory: HostMemory | None = None
    _snapshot: Snapshot | None = None
    _undoable = False
    """Whether the steps since :meth:`take_snapshot` are neither kept nor undone."""

    def __init__(self, world_size: int, rank: int, master_addr: str, master_port: int = 0) -> None:
        """``master_addr`` is rank 0's machine; its port is ``master_port``, or chosen by :meth:`open_rendezvous`."""
        self.world_size = world_size
        self.rank = rank
        self._master = (master_addr, master_port)
        self._store: TCPStore | None = None
        self._seconds: Metrics = {}
        self._rollout_id = 0
        os.environ.update(own_of_machine(os.environ))
        remove_at_the_end()

    def _begin(self, args: Arguments) -> None:
        """Set the arguments and join the group."""
        default_dtype = "bfloat16" if args.device == "cuda" else "float32"
        self.args = args.changed(train_dtype=args.train_dtype or default_dtype)
        logging.basicConfig(level=logging.INFO, format=f"[rank {self.rank}] %(levelname)s %(name)s: %(message)s")
        self.device = self._join()
        self._host_memory = HostMemory(self.device)
        if args.deterministic_mode:
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False

    def open_rendezvous(self) -> int:
        """Listen for the other ranks and return the port, by default a free one; rank 0 only."""
        address, port = self._master
        self._store = hosted_store(address, port)
        self.meet_at(self._store.port)
        return self._store.port

    def meet_at(self, port: int) -> None:
        """Set rank 0's port, before ``init``; plugins in this process read it as ``MASTER_PORT``."""
        address, _ = self._master
        self._master = (address, port)
        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
        meet_on_loopback(address)

    def _join(self) -> torch.device:
        """Join the ranks' default group and return this rank's device."""
        if self.args.device == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        else:
            device = torch.device("cpu")
            torch.set_num_threads(1)
        timeout = timedelta(minutes=self.args.distributed_timeout_minutes)
        if self._store is None:
            address, port = self._master
            self._store = (
                hosted_store(address, port)
                if self.rank == 0
                else TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timeout)
            )
        self._store.set_timeout(timeout)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
            store=self._store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=timeout,
        )
        return device

    def _set_model(self, model: Any, optimizer: Any) -> None:
        """Set ``model`` and ``optimizer``, and create the schedule."""
        args = self.args
        self.model = model
        self.optimizer = optimizer
        steps = (args.num_steps_per_rollout or 1) * args.num_rollout if args.num_rollout else None
        self.schedule = Schedule(args, steps)

    def _seed(self) -> None:
        seed = self.args.seed + self.rank
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)

    def _start_weights(self) -> str:
        """Return the Hugging Face folder to start from: --load if it is one, else --ref-load, else --hf-checkpoint."""
        args = self.args
        if args.load and (Path(args.load) / "config.json").exists():
            return args.load
        return args.ref_load or args.hf_checkpoint

    def _restore(self, folder: Path) -> dict[str, Any]:
        """Load model, optimizer, schedule and random state of a checkpoint and return its metadata."""
        meta = read_meta(folder)
        if meta.get("role", self.role) != self.role:
            raise CheckpointError(
                f"{folder} is a checkpoint of the {meta['role']}: name one of the {self.role}, or a Hugging Face folder"
            )
        check_same_parameters(self.args, meta)
        check_same_adapters(self.args, meta)
        meta = self._read(folder)
        self.schedule.load_state_dict(meta["schedule"], everything=self.args.use_checkpoint_lr_scheduler)
        logger.info("continuing from %s", folder)
        return meta

    def restore(self, iteration: int) -> None:
        """Go back to the run's own checkpoint after ``iteration`` rollouts."""
        self._check_memory()
        self._restore(folder_of(self._save_folder(), iteration))

    @abstractmethod
    def _save_folder(self) -> Path:
        """Return the root of this role's checkpoints."""

    @abstractmethod
    def _read(self, folder: Path) -> dict[str, Any]:
        """Load model, optimizer and random state of the checkpoint ``folder`` and return its metadata."""

    def _common_meta(self, rollout_id: int) -> dict[str, Any]:
        return {
            "role": self.role,
            "rollout_id": rollout_id,
            "schedule": self.schedule.state_dict(),
            "world_size": self.world_size,
            "lora": bool(self.args.use_lora),
            "adapters": shape_of_adapters(self.args),
            "hf_checkpoint": str(self.args.hf_checkpoint),
            **{name: getattr(self.args, name) for name in PATTERNS},
        }

    # Undoing a rollout's steps

    @abstractmethod
    def _changing(self) -> Changing:
        """Return what a step changes; the state of every optimizer is complete, and no weights are left gathered."""

    def take_snapshot(self) -> None:
        """Copy to the host what the next steps change; then :meth:`keep_steps` or :meth:`undo_steps` follows."""
        self._check_memory()
        self._snapshot = self._snapshot or Snapshot(self.device)
        self._snapshot.take(self._changing())
        self._undoable = True

    def keep_steps(self) -> None:
        """Keep what was trained since :meth:`take_snapshot`; its host memory is used again."""
        self._undoable = False

    def undo_steps(self) -> None:
        """Go back to the state at :meth:`take_snapshot`, bit for bit; a no-op without one that is open."""
        if self._undoable:
            assert self._snapshot is not None
            self._snapshot.put(self._changing())
        self._undoable = False

    # Memory

    @abstractmethod
    def _device_tensors(self) -> tuple[Iterator[torch.Tensor], Iterator[torch.Tensor]]:
        """Return the tensors of model, optimizer and reference, and those that are all zero between steps."""

    def offload(self) -> None:
        """Move this rank's device memory to the host; until :meth:`onload` only weight pushes work."""
        if self._is_away():
            return
        assert self._host_memory is not None, "call init first"
        with self._timed("offload"):
            moved = self._host_memory.take(*self._device_tensors())
        logger.info("%.2f GB are on the host, %.3f s", moved / 1e9, self._seconds["offload"])

    def onload(self) -> None:
        """Move this rank's memory back to its device."""
        assert self._host_memory is not None, "call init first"
        with self._timed("onload"):
            self._host_memory.give_back()

    def _is_away(self) -> bool:
        return self._host_memory is not None and self._host_memory.is_used

    def _value(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values of ``tensor`` on the device, even while offloaded."""
        return tensor.detach() if self._host_memory is None else self._host_memory.value(tensor)

    def _check_memory(self) -> None:
        """Raise TrainerError while offloaded, because tensors have no storage then."""
        if self._is_away():
            raise TrainerError("the memory of this rank is on the host: call onload first")

    def shutdown(self) -> None:
        """Leave the process groups."""
        for memory in (self._host_memory, self._snapshot):
            if memory is not None:
                memory.close()
        if dist.is_initialized():
            dist.destroy_process_group()
        self._store = None

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.perf_counter()
        traced = self.args.use_pytorch_profiler and name in TARGETS
        with profiled(self.args, name, self._rollout_id, self.rank) if traced else nullcontext():
            yield
        self._seconds[name] = self._seconds.get(name, 0.0) + time.perf_counter() - start

    def _take_seconds(self) -> Metrics:
        seconds, self._seconds = self._seconds, {}
        return {f"perf/{name}_time": value for name, value in seconds.items()}


def mean_of_steps(steps: list[Metrics]) -> Metrics:
    """Return means over a rollout's optimizer steps, the last learning rate, and the sum of skipped steps."""
    names = sorted({name for step in steps for name in step})
    result = {}
    for name in names:
        values = [step[name] for step in steps if name in step]
        result[name] = max(values) if is_largest(name) else sum(values) / len(values)
    if steps:
        result["lr-pg_0"] = steps[-1]["lr-pg_0"]
        result["skipped_steps"] = sum(step["skipped_steps"] for step in steps)
    return result


def fetch(value: Any) -> Any:
    """Dereference a Ray object reference; return any other value unchanged."""
    if isinstance(value, dict):
        return value
    import ray

    return ray.get(value)
