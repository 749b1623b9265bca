"""Load a stream of weights inside an engine, straight from the trainer's memory into the parameters.

A model's first stream is loaded from whole tensors, like a checkpoint. Then the model's own loader runs once without
data (`slime.weight_sync.copy_trace`). If it only copies each tensor, or parts of it, before it takes the next, later
streams need no whole tensor: the loader runs without data again, and each piece of the stream is copied to where the
loader would put it. A model whose loader does anything else keeps getting whole tensors.

Guarantees: if the trainer dies mid-stream, the engine keeps running with its requests held, because its weights may be
mixed. The stream itself sets no version.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from slime.weight_sync.copy_trace import CopyTrace, is_part
from slime.weight_sync.segments import Mappings
from slime.weight_sync.stream import StreamReader, WriterGoneError

logger = logging.getLogger(__name__)

MAPPINGS = Mappings()
"""Mappings of the trainer's memory in this process, kept between streams."""
Kind = tuple[torch.dtype, list[int]]
Part = tuple[Tensor, Tensor]
"""A tensor of the model, and the view of a checkpoint's tensor (without data) that it gets."""

TAKEN: weakref.WeakKeyDictionary[Any, dict[str, Kind]] = weakref.WeakKeyDictionary()
"""Tensors of a model's first stream; none if its loader needs them whole."""


def load_stream(model: Any, request: dict[str, Any], tensors: dict[str, Tensor]) -> None:
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
