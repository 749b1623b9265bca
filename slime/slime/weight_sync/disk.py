"""Push weights over a file system that trainer and engines share: one Hugging Face folder per version.

Guarantees: engines serve while the folder is written. It appears whole, by rename, as ``weight_v<version>``. The last
``KEPT`` folders stay during the run and none after it, unless ``--update-weight-disk-keep-files``. Only folders that
this run wrote are removed, because others in ``--update-weight-disk-dir`` may belong to another run. The run folder
lists them, so a restarted trainer also removes what a dead one left, finished or not.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from slime.args import Arguments
from slime.checkpoints.checkpoint_folder import unfinished, write_hf
from slime.weight_sync.engine_sync import EngineWeightSync
from slime.weight_sync.remote_engine import RemoteEngine
from slime.weight_sync.requests import cast

KEPT = 2


class DiskWeightSync(EngineWeightSync):
    """See the module. Rank 0 writes."""

    def __init__(self, args: Arguments, *, device: torch.device, address: str) -> None:
        super().__init__(args, device=device, address=address)
        self._folder = Path(args.update_weight_disk_dir or Path(args.run_dir) / "weights").absolute()
        self._list = Path(args.run_dir) / "weights_on_disk.txt"
        self._written: list[Path] = []

    def _join(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        if not self._written and self._list.exists():
            self._written = [Path(line) for line in self._list.read_text().split("\n") if line]
        self._call(RemoteEngine.close_left_session)  # this transport opens no session that would notice one

    def _transfer(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        folder = self._folder / f"weight_v{version}"
        self._note([*(path for path in self._written if path != folder), folder])
        write_hf(cast(weights, self._dtype), Path(self._args.hf_checkpoint), folder, dtype=self._dtype)
        self._pause()
        self._call(RemoteEngine.update_weights_from_disk, str(folder), self._flushes(), version)
        self._remove(keep=KEPT)
        if self._check is not None:
            self._call(RemoteEngine.begin_weight_update)  # an empty session, for the comparison

    def _finish(self) -> None:
        if self._check is not None:
            super()._finish()

    def _leave(self, *, broken: bool) -> None:
        """Do nothing; the files stay for the next connection."""

    def close(self) -> None:
        """See `EngineWeightSync.close`; removes the files."""
        super().close()
        if self._written:  # rank 0's; the list is of use until they are gone
            self._remove(keep=0)

    def _remove(self, keep: int) -> None:
        if self._args.update_weight_disk_keep_files:
            return
        for folder in self._written[: max(0, len(self._written) - keep)]:
            for path in (folder, unfinished(folder)):
                if path.exists():
                    shutil.rmtree(path)
        self._note(self._written[-keep:] if keep else [])

    def _note(self, written: list[Path]) -> None:
        self._written = written
        if written:
            self._list.parent.mkdir(parents=True, exist_ok=True)
            self._list.write_text("".join(f"{path}\n" for path in written))
        else:
            self._list.unlink(missing_ok=True)
