"""Code that runs inside an engine: loads the trainer's weights, and reports checksums of the engine's.

SGLang calls :func:`load` for ``/update_weights_from_tensor`` if ``--custom-weight-loader`` and the load format name it
(`slime.weight_sync.LOADER`). Guarantees: the model's own ``load_weights`` loads the tensors, so it handles fused and
split parameters. A request that fails raises, which ends the engine, because it may hold a mix of old and new weights.

A stream is loaded straight from the trainer's memory into the parameters. A model's first stream is loaded from whole
tensors, like a checkpoint. Then the model's own loader runs once without data (:class:`CopyTrace`). If it only copies
each tensor, or parts of it, before it takes the next, later streams need no whole tensor: the loader runs without data
again, and each piece of the stream is copied to where the loader would put it. A model whose loader does anything else
keeps getting whole tensors.

Guarantees: if the trainer dies mid-stream, the engine keeps running with its requests held, because its weights may be
mixed. The stream itself sets no version.
"""

from __future__ import annotations

import atexit
import json
import logging
import weakref
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from slime.weight_sync.delta import Mirror, bits
from slime.weight_sync.group import group_named
from slime.weight_sync.requests import MODULUS, checksum, read_request, unpack
from slime.weight_sync.segments import Mappings, StreamReader, WriterGoneError

_UNREAD = 1_618_033
"""Placeholder for the value of a one-element tensor without data."""
_CONSTANTS = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)
"""Operations that write to a parameter, for example to its padding, without reading one."""


class CopyTrace(TorchDispatchMode):
    """Records where the loader would copy each tensor, without copying anything.

    The loaded tensors have no data (``meta``). Slicing keeps their offset and strides, which identify the part. The loader may
    read a one-element tensor and fill in the value (SGLang's default loader does); this counts as a copy.

    Attributes:
        found: per part, the name of the latest tensor, the destination, and the source.
        computed: the first operation that read the model's own data, for example to derive a value from its parameters; empty
            if there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        self.found: list[tuple[str, Tensor, Tensor]] = []
        self.computed = ""
        self._read: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """Record a copy, or run any other operation."""
        if func is torch.ops.aten.copy_.default and args[1].is_meta:
            self.found.append((self.name, args[0], args[1]))
            return args[0]
        if func is torch.ops.aten._local_scalar_dense.default and args[0].is_meta:
            # The loader asks for the value of a tensor without data: it gets a mark, which the next operation must write.
            self._read = args[0]
            return _UNREAD
        if self._read is not None and func is not torch.ops.aten.detach.default:
            filled = func is torch.ops.aten.fill_.Scalar and args[1] == _UNREAD and args[0].numel() == 1
            if not filled:
                raise NotImplementedError(f"the loader computes with the value of {self.name}")
            self.found.append((self.name, args[0], self._read))
            self._read = None
            return args[0]
        if not self.computed and not func.is_view and func not in _CONSTANTS and _reads((args, kwargs)):
            self.computed = str(func)
        return func(*args, **(kwargs or {}))

    def tensor(self, name: str, shape: list[int], dtype: torch.dtype) -> Tensor:
        """Return a tensor without data; copies until the next call count as its parts."""
        # A fresh tensor has a storage of its own, by which `is_part` knows its parts.
        self.name, self._read = name, None
        return torch.empty(shape, dtype=dtype, device="meta")


def is_part(place: Tensor, whole: Tensor) -> bool:
    """Return whether ``place`` is a view of ``whole`` with its dtype, identified by offset and strides."""
    return place.dtype == whole.dtype and place.untyped_storage()._cdata == whole.untyped_storage()._cdata


def _reads(arguments: Any) -> bool:
    """Return whether ``arguments`` contain a tensor with data."""
    return any(isinstance(leaf, Tensor) and not leaf.is_meta for leaf in tree_leaves(arguments))


logger = logging.getLogger(__name__)

MAPPINGS = Mappings()
"""The trainer's memory in this process, kept between pushes."""
atexit.register(MAPPINGS.close)
Kind = tuple[torch.dtype, list[int]]
Part = tuple[Tensor, Tensor]
"""A tensor of the model, and the view of a checkpoint's tensor (without data) that it gets."""

TAKEN: weakref.WeakKeyDictionary[Any, dict[str, Kind]] = weakref.WeakKeyDictionary()
"""Tensors of a model's first stream; none if its loader needs them whole."""


def load_stream(model: Any, request: dict[str, Any]) -> None:
    """Load the trainer's stream to this rank."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    try:
        with StreamReader(request["sources"][rank], MAPPINGS) as reader:
            if TAKEN.get(model):
                _load_in_place(model, reader)
            else:
                kinds: dict[str, Kind] = {}
                model.load_weights(_whole_tensors(reader, kinds))
                if model not in TAKEN:
                    TAKEN[model] = kinds if _only_copies(model, kinds) else {}
    except (WriterGoneError, FileNotFoundError):
        logger.warning("the trainer ended during a push; holding requests until the next push")


def _whole_tensors(reader: StreamReader, kinds: dict[str, Kind]) -> Iterator[tuple[str, Tensor]]:
    for name, dtype, shape in reader.announced():
        kinds[name] = dtype, shape
        yield name, _assembled(reader, dtype, shape)


def _assembled(reader: StreamReader, dtype: torch.dtype, shape: list[int]) -> Tensor:
    whole = torch.empty(shape, dtype=dtype)
    data, start = whole.view(-1).view(torch.uint8), 0
    for piece in reader.pieces(data.numel()):
        data[start : start + piece.numel()].copy_(piece)
        start += piece.numel()
    return whole


def _only_copies(model: Any, kinds: dict[str, Kind]) -> bool:
    try:
        parts_of(model, kinds)
    except (NotImplementedError, RuntimeError, TypeError, ValueError) as reason:
        logger.warning("loading weights from whole tensors, which takes longer: %s", reason)
        return False
    return True


def parts_of(model: Any, kinds: dict[str, Kind]) -> dict[str, list[Part]]:
    """Return where the model's loader copies each tensor to, without copying.

    Raises:
        NotImplementedError: it does not copy a tensor, or parts of it, before it takes the next; or it computes with
            the model's weights, which are still those of the previous push because nothing is copied here.
    """
    parts: dict[str, list[Part]] = {}

    def given() -> Iterator[tuple[str, Tensor]]:
        for name, (dtype, shape) in kinds.items():
            whole = trace.tensor(name, shape, dtype)
            seen = len(trace.found)
            yield name, whole
            parts[name] = [(target, place) for _, target, place in trace.found[seen:]]
            if not parts[name] or not all(_is_copied(target, place, whole) for target, place in parts[name]):
                raise NotImplementedError(f"{name} is not copied as it is")

    with CopyTrace() as trace:
        model.load_weights(given())
    if trace.computed:
        raise NotImplementedError(f"the loader computes with the model's weights ({trace.computed})")
    return parts


def _is_copied(target: Tensor, place: Tensor, whole: Tensor) -> bool:
    """Return whether each element of ``target`` gets its own element of ``whole``."""
    return is_part(place, whole) and target.numel() == place.numel()


def _load_in_place(model: Any, reader: StreamReader) -> None:
    parts = parts_of(model, TAKEN[model])
    for name, dtype, shape in reader.announced():
        if (dtype, shape) != TAKEN[model].get(name):
            raise RuntimeError(f"{name} is {dtype} {shape}, unlike in the first push")
        _fill(reader, dtype, shape, parts[name])


def _fill(reader: StreamReader, dtype: torch.dtype, shape: list[int], parts: list[Part]) -> None:
    """Copy a tensor's pieces to its parts."""
    if not all(target.is_contiguous() and place.is_contiguous() for target, place in parts):
        whole = _assembled(reader, dtype, shape)
        for target, place in parts:
            target.copy_(whole.as_strided(place.size(), place.stride(), place.storage_offset()))
        return
    flat = [(target.view(-1), int(place.storage_offset())) for target, place in parts]
    start = 0
    for piece in reader.pieces(torch.Size(shape).numel() * dtype.itemsize):
        values = piece.view(dtype)
        end = start + values.numel()
        for target, offset in flat:
            first, last = max(start, offset), min(end, offset + target.numel())
            if first < last:
                target[first - offset : last - offset].copy_(values[first - start : last - start])
        start = end


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


def _checksums(model: Any, request: dict[str, Any]) -> None:
    held = held_checksums(model, request["shapes"], request["dtypes"])
    rank = dist.get_rank() if dist.is_initialized() else 0
    STORE.of(*request["store"]).set(f"{request['key']}/{rank}", json.dumps(held))


def _load(model: Any, request: dict[str, Any]) -> None:
    """Load a bucket; after the return its memory may be overwritten.

    Copies run where the model's loader was called, and on the default stream if it has threads of its own. An event on each
    waits for them alone, not for the device. SGLang calls this on its scheduling stream, which the next forward pass waits for.
    The last one is over: SGLang processes its results when it retracts requests, and after another pause the trainer asks for
    :func:`_wait` first.
    """
    model.load_weights(
        unpack(MAPPINGS.bytes_of(request["source"]), request["names"], request["dtypes"], request["shapes"])
    )
    if torch.cuda.is_initialized():
        for copied in [stream.record_event() for stream in (torch.cuda.current_stream(), torch.cuda.default_stream())]:
            copied.synchronize()


def _change(model: Any, request: dict[str, Any]) -> None:
    """Receive a change, apply it to this process's copy of the weights, and load what changed."""
    group = group_named(request["group"])
    backend = dist.get_backend(group)
    data = torch.empty(request["nbytes"], dtype=torch.uint8, device="cuda" if backend == "nccl" else "cpu")
    if request["nbytes"]:
        dist.broadcast(data, src=0, group=group)
    model.load_weights(iter(MIRROR.apply(data.cpu(), **request["change"])))
    if request["version"] is not None:
        MIRROR.version = request["version"]


def _wait(model: Any, request: dict[str, Any]) -> None:
    """Wait until the GPU is idle.

    A pause in place only keeps SGLang from starting passes. The last one may still read the weights, on a stream of its own.
    """
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


def _nothing(model: Any, request: dict[str, Any]) -> None:
    """Load nothing: SGLang itself sets the version or empties the prefix cache for this request."""


OPERATIONS = {
    "checksums": _checksums,
    "load": _load,
    "change": _change,
    "stream": load_stream,
    "wait": _wait,
    "nothing": _nothing,
}


def load(model: Any, named_tensors: list[tuple[str, Tensor]]) -> None:
    """Execute the request in ``named_tensors``."""
    request = read_request(named_tensors)
    OPERATIONS[request["operation"]](model, request)
