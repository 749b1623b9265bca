"""Files of ``torch.save`` that hold data: loading one runs no code of its author.

Guarantee: :func:`load_data` reads everything that :func:`save_data` writes. Both take plain values and containers,
tensors, NumPy's arrays and numbers, and pictures.
"""

from __future__ import annotations

import pickle
import re
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import IO, Any

from slime.exceptions import CheckpointError

_PLAIN = frozenset({bool, int, float, complex, str, bytes, bytearray, type(None)})
_CONTAINERS = (list, tuple, set)
_DICTS = (dict, OrderedDict, Counter)
_FOREIGN = re.compile(r"GLOBAL (\S+) was not an allowed global")
_KINDS = "plain values, lists, tuples, sets, dicts, tensors, NumPy arrays and pictures"


def save_data(value: Any, file: str | Path | IO[bytes], own: Sequence[type] = ()) -> None:
    """Write ``value``; ``own``: dataclasses of ours that it may hold too.

    Raises:
        CheckpointError: it holds an object that `load_data` would refuse.
    """
    import torch

    if (stranger := _stranger(value, own)) is not None:
        raise CheckpointError(
            f"{stranger.__module__}.{stranger.__qualname__} cannot be saved with the samples; use {_KINDS} only"
        )
    torch.save(value, file)


def load_data(file: str | Path, own: Sequence[type] = ()) -> Any:
    """Return what a file of `save_data` holds, on the CPU; ``own`` as there.

    Raises:
        CheckpointError: the file is damaged, or it asks for code to run.
    """
    import torch

    try:
        with torch.serialization.safe_globals([*_allowed(), *own]):
            return torch.load(file, weights_only=True, map_location="cpu")
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        if match := _FOREIGN.search(str(error)):
            raise CheckpointError(
                f"{file} holds {match[1]}, and loading it would run code; use a file with nothing but {_KINDS}"
            ) from error
        raise CheckpointError(f"{file} is damaged ({' '.join(str(error).split())[:200]}); use another file") from error


def _pictures() -> list[type]:
    from PIL import BmpImagePlugin, GifImagePlugin, Image, JpegImagePlugin, PngImagePlugin, WebPImagePlugin

    return [
        Image.Image,
        BmpImagePlugin.BmpImageFile,
        GifImagePlugin.GifImageFile,
        JpegImagePlugin.JpegImageFile,
        PngImagePlugin.PngImageFile,
        WebPImagePlugin.WebPImageFile,
    ]


def _allowed() -> list[Callable[..., Any] | tuple[Callable[..., Any], str]]:
    import numpy as np

    parts = np._core.multiarray  # type: ignore[attr-defined]
    rebuilding = [parts._reconstruct, parts.scalar]
    older = [(function, f"numpy.core.multiarray.{function.__name__}") for function in rebuilding]
    return [
        bytes,  # of an array without elements
        np.ndarray,
        np.dtype,
        *rebuilding,
        *older,
        *(getattr(np.dtypes, name) for name in np.dtypes.__all__),
        *_pictures(),
    ]


def _stranger(value: Any, own: Sequence[type]) -> type | None:
    """Return the first type within ``value`` that `load_data` refuses, or None."""
    import numpy as np
    import torch

    known = {torch.Tensor, np.ndarray, *_pictures()}
    left: list[Iterable[Any]] = [(value,)]
    while left:
        for item in left.pop():
            kind = type(item)
            if kind in _PLAIN or kind in known or isinstance(item, np.generic):
                continue
            if kind in _DICTS:
                left += [item.keys(), item.values()]
            elif kind in _CONTAINERS:
                if not set(map(type, item)) <= _PLAIN:
                    left.append(item)
            elif kind in own:
                left.append(vars(item).values())
            else:
                return kind
    return None
