"""What runs inside an engine: loads what the trainer left for it, and says what it holds.

SGLang calls :func:`load` for ``/update_weights_from_tensor`` when ``--custom-weight-loader`` and the load format name it
(`slime.weight_sync.LOADER`). Guarantees: what a model takes is what its own ``load_weights`` takes, so fused and split parameters
are the model's business; a request that cannot be done raises, which ends the engine, because its weights may be half new.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from slime.weight_sync.buckets import unpack
from slime.weight_sync.checksums import MODULUS, checksum
from slime.weight_sync.copy_trace import CopyTrace
from slime.weight_sync.delta import Mirror, bits
from slime.weight_sync.engine_stream import MAPPINGS, load_stream
from slime.weight_sync.group import group_named
from slime.weight_sync.requests import DATA, read_request

STORE_SECONDS = 60.0


class Connection:
    """Owns the connection to the store of the trainer that asked last.

    It stays open: requests are held meanwhile, and each new one asks the name service for the trainer, which may take seconds.
    """

    def __init__(self) -> None:
        self._place: tuple[str, int, str] | None = None
        self._store: Any = None

    def of(self, host: str, port: int, name: str) -> TCPStore:
        """Return the store ``name``, which no other store of that host and port has had, connected."""
        if self._place != (host, port, name):
            self._store = TCPStore(host, port, None, False, timedelta(seconds=STORE_SECONDS), wait_for_workers=False)
            self._place = (host, port, name)
        return self._store


STORE = Connection()
MIRROR = Mirror()
"""The trainer's weights as this process knows them; empty unless changes are sent."""


def held_checksums(model: Any, shapes: dict[str, list[int]], dtypes: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Return checksum and number of elements of what ``model`` holds of each checkpoint tensor.

    What it keeps in a wider type, as a router's bias in float32, counts as the trainer's value if it is exactly one of its type.

    Raises:
        TypeError: when the model keeps a tensor in a type that cannot hold the trainer's values.
    """
    with CopyTrace() as trace:
        model.load_weights(
            (name, trace.tensor(name, shape, getattr(torch, dtypes[name]))) for name, shape in shapes.items()
        )
    held: dict[str, tuple[int, int]] = {}
    for name, part, place in trace.found:
        narrow = part.to(place.dtype)
        off = 0
        if part.dtype != place.dtype:
            if torch.promote_types(part.dtype, place.dtype) != part.dtype:
                raise TypeError(
                    f"{name} is {part.dtype} here and {place.dtype} in the trainer, so bits cannot be compared"
                )
            off = int(not torch.equal(bits(narrow.to(part.dtype)), bits(part)))
        value, count = held.get(name, (0, 0))
        held[name] = ((value + checksum(narrow, place) + off) % MODULUS, count + part.numel())
    return held


def _checksums(model: Any, request: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    held = held_checksums(model, request["shapes"], request["dtypes"])
    rank = dist.get_rank() if dist.is_initialized() else 0
    STORE.of(*request["store"]).set(f"{request['key']}/{rank}", json.dumps(held))


def _load(model: Any, request: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Load a bucket; when this returns, its memory may be written to again."""
    data = tensors[DATA] if DATA in tensors else MAPPINGS.bytes_of(request["source"])
    model.load_weights(unpack(data, request["names"], request["dtypes"], request["shapes"]))
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _change(model: Any, request: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Receive a change, apply it to this process's copy of the weights, and load what changed."""
    group = group_named(request["group"])
    backend = dist.get_backend(group)
    data = torch.empty(request["nbytes"], dtype=torch.uint8, device="cuda" if backend == "nccl" else "cpu")
    if request["nbytes"]:
        dist.broadcast(data, src=0, group=group)
    model.load_weights(iter(MIRROR.apply(data.cpu(), **request["change"])))
    if request["version"] is not None:
        MIRROR.version = request["version"]


def _nothing(model: Any, request: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """For what SGLang does besides: the request may set the version and empty the prefix cache."""


OPERATIONS = {"checksums": _checksums, "load": _load, "change": _change, "stream": load_stream, "nothing": _nothing}


def load(model: Any, named_tensors: list[tuple[str, Tensor]]) -> None:
    """Do the request among ``named_tensors``."""
    request, tensors = read_request(named_tensors)
    OPERATIONS[request["operation"]](model, request, tensors)
