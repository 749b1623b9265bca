"""Weights over a file system that trainer and engines share: a Hugging Face folder per version, which engines load themselves.

Guarantees: engines serve while the folder is written; it appears whole, by rename, as ``weight_v<version>``; the last ``KEPT``
stay while the run lasts, none after it, unless ``--update-weight-disk-keep-files``. Of the folders in
``--update-weight-disk-dir`` only those that this trainer wrote are removed; others may be another run's.
"""

from __future__ import annotations

import re
import shutil
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from slime.backends.trainer.checkpoint_folder import unfinished
from slime.backends.trainer.dtypes import DTYPES
from slime.backends.trainer.hf_folder import write_hf
from slime.weight_sync.engine_sync import EngineWeightSync

KEPT = 2
NAME = re.compile(r"weight_v(\d+)")


class DiskWeightSync(EngineWeightSync):
    """See the module. Rank 0 writes."""

    def __init__(self, args: Namespace, *, device: torch.device, address: str) -> None:
        super().__init__(args, device=device, address=address)
        self._folder = Path(args.update_weight_disk_dir or Path(args.run_dir) / "weights").absolute()
        self._written: list[Path] = []

    def _join(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if (
            not self._written and not self._args.update_weight_disk_dir
        ):  # in the run's own folder: of a trainer that died
            found = {int(match[1]): path for path in self._folder.iterdir() if (match := NAME.fullmatch(path.name))}
            self._written = [found[number] for number in sorted(found)]

    def _transfer(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        folder = self._folder / f"weight_v{version}"
        self._written = [*(path for path in self._written if path != folder), folder]
        write_hf(weights, Path(self._args.hf_checkpoint), folder, dtype=DTYPES[self._args.train_dtype])
        self._pause()
        self._call("update_weights_from_disk", str(folder), self._flushes(), version)
        self._remove(keep=KEPT)
        if self._check is not None:
            self._call("begin_weight_update")  # a session in which nothing is loaded, for the comparison

    def _finish(self) -> None:
        if self._check is not None:
            super()._finish()

    def _leave(self, *, broken: bool) -> None:
        """Nothing to leave; the files stay for the next connection."""

    def close(self) -> None:
        """See `EngineWeightSync.close`; removes the files."""
        super().close()
        self._remove(keep=0)

    def _remove(self, keep: int) -> None:
        if self._args.update_weight_disk_keep_files:
            return
        while len(self._written) > keep:
            folder = self._written.pop(0)
            for path in (folder, unfinished(folder)):
                if path.exists():
                    shutil.rmtree(path)
