"""Trace where a model's loader copies a checkpoint's tensors, by running it without data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

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
        self.name, self._read = name, None
        return torch.empty(shape, dtype=dtype, device="meta")


def is_part(place: Tensor, whole: Tensor) -> bool:
    """Return whether ``place`` is a view of ``whole`` with its dtype, identified by offset and strides."""
    return place.dtype == whole.dtype and place.untyped_storage()._cdata == whole.untyped_storage()._cdata


def _reads(arguments: Any) -> bool:
    """Return whether ``arguments`` contain a tensor with data."""
    return any(isinstance(leaf, Tensor) and not leaf.is_meta for leaf in tree_leaves(arguments))
