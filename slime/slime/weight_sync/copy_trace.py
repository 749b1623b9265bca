"""Where a model's own loader puts each part of a checkpoint's tensors, found by running it on tensors without data."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

_UNREAD = 1_618_033
"""What the one element of a tensor without data is said to be."""
_CONSTANTS = (torch.ops.aten.fill_.Scalar, torch.ops.aten.zero_.default)
"""They write to a parameter, as to what pads it, without reading any."""


class CopyTrace(TorchDispatchMode):
    """Notes where the loader would copy each tensor to, and copies nothing.

    The tensors that are loaded have no data (``meta``), but slicing them keeps offset and strides, which say what part it is.
    A tensor of one element may be read and filled in instead (SGLang's default loader does so); that counts as copied.

    Attributes:
        found: of each part, the name of the tensor that was given last, where it goes to, and what is copied there.
        computed: the first operation that read what the model holds, as one that derives something from its parameters; empty
            when there was none.
    """

    def __init__(self) -> None:
        super().__init__()
        self.name = ""
        self.found: list[tuple[str, Tensor, Tensor]] = []
        self.computed = ""
        self._read: Tensor | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        """See the class."""
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
        """Return a tensor without data; what is copied until the next one is given counts as its parts."""
        self.name, self._read = name, None
        return torch.empty(shape, dtype=dtype, device="meta")


def is_part(place: Tensor, whole: Tensor) -> bool:
    """Whether ``place`` is a view of ``whole`` with its dtype, so that its offset and strides say which part."""
    return place.dtype == whole.dtype and place.untyped_storage()._cdata == whole.untyped_storage()._cdata


def _reads(arguments: Any) -> bool:
    """Whether a tensor with data is among ``arguments``."""
    return any(isinstance(leaf, Tensor) and not leaf.is_meta for leaf in tree_leaves(arguments))
