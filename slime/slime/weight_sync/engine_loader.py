"""Code that runs inside an engine: loads the trainer's weights, and reports checksums of the engine's.

SGLang calls :func:`load` for ``/update_weights_from_tensor`` if ``--custom-weight-loader`` and the load format name it
(`slime.weight_sync.LOADER`). Guarantees: the model's own ``load_weights`` loads the tensors, so it handles fused and
split parameters. A request that fails raises, which ends the engine, because it may hold a mix of old and new weights.
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
    """Owns the connection to the latest trainer's store.

    It stays open, because a new one looks up the trainer's name, which may take seconds while requests are held.
    """

    def __init__(self) -> None:
        self._place: tuple[str, int, str] | None = None
        self._store: Any = None

    def of(self, host: str, port: int, name: str) -> TCPStore:
        """Return a connection to the store ``name``, a name that is unique for its host and port."""
        if self._place != (host, port, name):
            self._store = TCPStore(host, port, None, False, timedelta(seconds=STORE_SECONDS), wait_for_workers=False)
            self._place = (host, port, name)
        return self._store


STORE = Connection()
MIRROR = Mirror()
"""The trainer's weights as this process knows them; empty unless changes are sent."""


def held_checksums(model: Any, shapes: dict[str, list[int]], dtypes: dict[str, str]) -> dict[str, tuple[int, int]]:
    """Return checksum and element count of the part that ``model`` holds of each checkpoint tensor.

    A value kept in a wider type, such as a router's float32 bias, matches if the trainer's type represents it exactly.

    Raises:
        TypeError: the model keeps a tensor in a type that cannot hold the trainer's values.
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
    """Load a bucket; after the return its memory may be overwritten."""
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
    """Load nothing: SGLang itself sets the version or empties the prefix cache for this request."""


OPERATIONS = {"checksums": _checksums, "load": _load, "change": _change, "stream": load_stream, "nothing": _nothing}


def load(model: Any, named_tensors: list[tuple[str, Tensor]]) -> None:
    """Execute the request in ``named_tensors``."""
    request, tensors = read_request(named_tensors)
    OPERATIONS[request["operation"]](model, request, tensors)
