"""LoRA: send only the adapter, under a new name per version.

Guarantees:

* Engines never pause. A running request keeps its adapter, and later requests take the one whose version the engine was
  told last (`slime.backends.sglang_utils.server_hooks`). Versions never mix within a reply.
* An adapter that is only offered answers by its name alone.
* An engine keeps the two newest adapters, and older ones while a request uses them. Adapters of this run's earlier trainer
  process count as older.
* If loading fails on an engine, that engine is ended. The others hold their requests until the next push.
* An adapter is sent in ``--train-dtype``, like whole weights. The trainer computes with the adapter cast to that type, so
  the engine applies the same bits.
"""

from __future__ import annotations

import hashlib
import itertools
import pickle
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from slime.args import Arguments
from slime.weight_sync import ADAPTER_NAME, Sent, maker
from slime.weight_sync.engine_sync import EngineWeightSync
from slime.weight_sync.remote_engine import RemoteEngine
from slime.weight_sync.requests import cast

KEPT = 2
PUSHES = itertools.count(time.time_ns())
"""Numbers of pushes, unique across trainer restarts, because an engine accepts each adapter name only once."""


def adapter_config(args: Arguments) -> dict[str, Any]:
    """Return PEFT's description of the adapter."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": args.lora_rank,
        "lora_alpha": args.lora_alpha,
        "target_modules": list(args.lora_target_modules),
        "bias": "none",
    }


class AdapterWeightSync(EngineWeightSync):
    """The transport of this module.

    Attributes:
        moved_bytes: bytes that the last push sent to each rank of each engine.
    """

    def __init__(self, args: Arguments, *, device: torch.device, address: str) -> None:
        super().__init__(args, device=device, address=address)
        self.moved_bytes = 0
        self._names: list[str] = []

    def _join(self) -> None:
        """Find adapters that an earlier trainer process of this run left.

        There is no group to join, because requests carry the adapter.
        """
        left = set()
        for name in itertools.chain.from_iterable(self._call(RemoteEngine.lora_adapters)):
            match = ADAPTER_NAME.fullmatch(name)
            if match and match[2] == maker(self._args) and match[4] is None and name not in self._names:
                left.add((int(match[3]), name))
        self._names = [name for _, name in sorted(left)] + self._names

    def _leave(self, *, broken: bool) -> None:
        """No-op: there is no group to leave."""

    def _push(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        self._offer(weights, version)
        self._serve(version)

    def _offer(self, weights: Iterator[tuple[str, Tensor]], version: str) -> None:
        tensors = {name: value.cpu().contiguous() for name, value in cast(weights, self._dtype)}
        checksums = {name: _sha256(value) for name, value in tensors.items()} if self._check is not None else None
        message = pickle.dumps(tensors)
        self.moved_bytes = len(message)
        name = f"weights-{version}-{maker(self._args)}-{next(PUSHES)}"
        self._names.append(name)
        self.sent = Sent(name, hashlib.sha256(message).hexdigest())
        self._call(RemoteEngine.load_lora_adapter_from_tensors, name, adapter_config(self._args), message, checksums)

    def _serve(self, version: str) -> None:
        self._call(RemoteEngine.set_weight_version, version)
        self._call(
            RemoteEngine.continue_generation
        )  # an engine that restarted, or failed in a push, holds its requests
        for old in self._names[:-KEPT]:
            if all(self._call(RemoteEngine.unload_lora_adapter, old)):
                self._names.remove(old)


def _sha256(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.flatten().view(torch.uint8).numpy().tobytes()).hexdigest()
