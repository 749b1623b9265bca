"""One kept version of a run's weights in memory, as Transformers reads it on the CPU.

Guarantees: at most one version is in memory, and what is on disk for it goes once it is loaded. A version that does not fit into
memory or onto the disk is refused before anything is read. Version 0 is the base model; any other is written as ``openclaw-rl
export`` writes a whole model (`openclaw.runs.leave`). Used from one thread at a time.
"""

from __future__ import annotations

import gc
import logging
import shutil
from pathlib import Path

import psutil
from transformers import AutoModelForCausalLM, PreTrainedModel

from groundwork.exceptions import ConfigError
from groundwork.machine import usable_memory_mib
from groundwork.private_files import private_folder
from openclaw.exceptions import VersionRefusedError
from openclaw.runs.folder import RunFolder
from openclaw.runs.leave import MegatronError, base_of, write_version
from openclaw.runtime.adapters import BASE_VERSION
from openclaw.runtime.kept_versions import identity_of
from openclaw.runtime.where import scratch_of
from slime.exceptions import PeopleError, SlimeError
from slime.utils.hf_checkpoint import files_of_weights

logger = logging.getLogger(__name__)

SPARE_BYTES = 512 * 2**20
"""What stays free besides the weights: for the cache of a reply, and for others on the disk."""
GIB = 2**30


class Weights:
    """The versions of one run, of which at most one is loaded."""

    def __init__(self, run: RunFolder) -> None:
        """Prepare to load from ``run``; what a process before this one left on disk is deleted."""
        assert run.folder is not None
        self._run = run
        self._scratch = scratch_of(run.folder)
        shutil.rmtree(self._scratch, ignore_errors=True)
        self._identity: str | None = None
        self._model: PreTrainedModel | None = None

    def of(self, version: str, person: str | None) -> PreTrainedModel:
        """Return the model of a version: of everybody's weights, or with a person's adapter.

        Raises:
            VersionRefusedError: it is not kept any more, does not fit, or cannot be read.
        """
        assert self._run.folder is not None
        try:
            identity = identity_of(self._run.folder, version, person)
        except PeopleError as error:
            logger.error("%s", error)
            raise VersionRefusedError(f"version {version} cannot be read; the server's log says why", 500) from error
        if identity is None:
            raise VersionRefusedError(f"version {version} is not kept any more", 404)
        if self._model is None or identity != self._identity:
            self._model = self._identity = None
            gc.collect()
            self._model, self._identity = self._loaded(version, person), identity
        return self._model

    def _loaded(self, version: str, person: str | None) -> PreTrainedModel:
        try:
            base = base_of(self._run)
            size = sum(path.stat().st_size for path in set(files_of_weights(base).values()))
            self._check_room(version, size)
            if version == BASE_VERSION:
                return _read(base)
            private_folder(self._scratch)
            try:
                write_version(self._run, version, person, self._scratch / version)
                return _read(self._scratch / version)
            finally:
                shutil.rmtree(self._scratch, ignore_errors=True)
        except MegatronError as error:
            logger.error("%s", error)
            raise VersionRefusedError(
                f"version {version} is a checkpoint of Megatron, which cannot answer here; the server's operator converts it with "
                "slime/tools/convert_torch_dist_to_hf.py, and serves what that writes",
                409,
            ) from error
        except (ConfigError, SlimeError, PeopleError, OSError, ValueError) as error:
            logger.error("version %s cannot be read: %s", version, error)
            raise VersionRefusedError(f"version {version} cannot be read; the server's log says why", 500) from error

    def _check_room(self, version: str, size: int) -> None:
        """Refuse a version for whose ``size`` in bytes there is no room."""
        places = {"of memory": min(psutil.virtual_memory().available, usable_memory_mib() * 2**20)}
        if version != BASE_VERSION:
            places["on the disk of the run"] = shutil.disk_usage(self._scratch.parent).free
        for place, free in places.items():
            if size + SPARE_BYTES > free:
                raise VersionRefusedError(
                    f"version {version} needs {(size + SPARE_BYTES) / GIB:.1f} GiB {place}, where {free / GIB:.1f} GiB are free; "
                    "ask the version that serves",
                    507,
                )


def _read(folder: Path) -> PreTrainedModel:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", local_files_only=True)
    return model.eval()
