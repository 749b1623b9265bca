"""The process of a training rank: its place among the ranks of its role, and their default process group.

Guarantees: rank 0 listens on a port that it chooses, or on the one it is given, before any other rank looks for it. The
two temporary folders that Weights & Biases creates on import, which megatron-core does in each rank, are removed after
the process ends, even if it was killed, as ranks are; the library itself removes them only in an exit handler.
"""

from __future__ import annotations

import functools
import os
import random
import subprocess
import sys
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from groundwork.cleanup import entrust_path, start_janitor
from slime.args import Arguments
from slime.utils.forwarded_environment import own_of_machine
from slime.utils.tcp_store import hosted_store, meet_on_loopback


class RankProcess:
    """See the module.

    Attributes:
        world_size: number of ranks of the role.
        rank: of this one.
    """

    def __init__(self, world_size: int, rank: int, master_addr: str, master_port: int = 0) -> None:
        """``master_addr`` is rank 0's machine; its port is ``master_port``, or chosen by :meth:`open_rendezvous`."""
        self.world_size = world_size
        self.rank = rank
        self._master = (master_addr, master_port)
        self._store: TCPStore | None = None
        os.environ.update(own_of_machine(os.environ))
        remove_wandb_folders_at_the_end()

    @property
    def address(self) -> str:
        """Rank 0's machine."""
        return self._master[0]

    def open_rendezvous(self) -> int:
        """Listen for the other ranks and return the port, by default a free one; rank 0 only."""
        address, port = self._master
        self._store = hosted_store(address, port)
        self.meet_at(self._store.port)
        return self._store.port

    def meet_at(self, port: int) -> None:
        """Set rank 0's port, before :meth:`join`; plugins in this process read it as ``MASTER_PORT``."""
        address, _ = self._master
        self._master = (address, port)
        os.environ.update(MASTER_ADDR=address, MASTER_PORT=str(port))
        meet_on_loopback(address)

    def join(self, args: Arguments) -> torch.device:
        """Join the ranks' default group and return this rank's device."""
        if args.device == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(device)
        else:
            device = torch.device("cpu")
            torch.set_num_threads(1)
        timeout = timedelta(minutes=args.distributed_timeout_minutes)
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
        if args.deterministic_mode:
            torch.use_deterministic_algorithms(True)
            torch.backends.cudnn.benchmark = False
        return device

    def seed(self, args: Arguments) -> None:
        """Seed Python's, NumPy's and torch's random states, each rank with another number."""
        seed = args.seed + self.rank
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)

    def leave(self) -> None:
        """Leave the default group."""
        if dist.is_initialized():
            dist.destroy_process_group()
        self._store = None


_WANDB_FOLDERS = (("wandb.sdk.data_types._private", "MEDIA_TMP"), ("wandb.sdk.artifacts.artifact", "Artifact._TMP_DIR"))


def wandb_folders() -> list[str]:
    """Return the temporary folders of this process; empty for a version of the library with other folders."""
    results = []
    for module, path in _WANDB_FOLDERS:
        folder: Any = sys.modules.get(module)
        for name in path.split("."):
            folder = getattr(folder, name, None)
        if folder is not None:
            results.append(str(folder.name))
    return results


@functools.cache
def remove_wandb_folders_at_the_end() -> subprocess.Popen[str] | None:
    """Start a janitor that removes the folders, if there are any, and return it; a second call is a no-op.

    The cache keeps the janitor alive, because it treats the end of its pipe as this process's end.
    """
    folders = wandb_folders()
    if not folders:
        return None
    janitor = start_janitor(folders[0], detached=True)
    for folder in folders[1:]:
        entrust_path(janitor, folder)
    return janitor
