"""Mixed precision on a single rank, without FSDP2's copies of weights and gradients.

The parameters of a model stay what they are: float32, plain tensors, owned by the rank. While a unit (a decoder layer, a block of a
vision tower, the rest of the model) computes, its modules hold copies in the compute dtype, made by one launch per pass. Autograd
converts a copy's gradient back and adds it to the parameter's in float32. These are the roundings of FSDP2 with
``MixedPrecisionPolicy``, so both give the same bits, and checkpoints of either load into the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

Places = list[tuple[nn.Module, str]]


class _Cast(torch.autograd.Function):
    """Copy tensors to another dtype in one launch; gradients come back in the dtype of the originals."""

    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.dtypes = [tensor.dtype for tensor in tensors]
        ctx.set_materialize_grads(False)
        return tuple(_copies(tensors, dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        back = (
            None if gradient is None else gradient.to(dtype)
            for gradient, dtype in zip(gradients, ctx.dtypes, strict=True)
        )
        return None, *back


def _copies(tensors: Sequence[Tensor], dtype: torch.dtype) -> list[Tensor]:
    copies = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    torch._foreach_copy_(copies, list(tensors))  # pyright: ignore[reportPrivateImportUsage]
    return copies


class _Unit:
    """The parameters of a unit that need a copy, and the modules that hold each: two for tied weights."""

    def __init__(self, modules: Sequence[nn.Module], dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._places: dict[nn.Parameter, Places] = {}
        for module in modules:
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.is_floating_point() and parameter.dtype != dtype:
                    self._places.setdefault(parameter, []).append((module, name))

    def enter(self, *_: Any) -> None:
        """Let the modules hold copies."""
        trained = [parameter for parameter in self._places if parameter.requires_grad]
        frozen = [parameter for parameter in self._places if not parameter.requires_grad]
        copies = [*_Cast.apply(self._dtype, *trained)] if trained else []
        copies += _copies([parameter.detach() for parameter in frozen], self._dtype) if frozen else []
        for parameter, copy in zip([*trained, *frozen], copies, strict=True):
            for module, name in self._places[parameter]:
                module._parameters[name] = copy  # type: ignore[assignment]

    def leave(self, *_: Any) -> None:
        """Let the modules hold their parameters again."""
        for parameter, places in self._places.items():
            for module, name in places:
                module._parameters[name] = parameter

    def around(self, module: nn.Module) -> None:
        """Enter and leave with each call of ``module``, also one that fails or that checkpointing ends early."""
        module.register_forward_pre_hook(self.enter)
        module.register_forward_hook(self.leave, always_call=True)

    def within(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function``, run inside the unit."""

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            self.enter()
            try:
                return function(*args, **kwargs)
            finally:
                self.leave()

        return run


def compute_in(
    model: Any, dtype: torch.dtype, blocks: Sequence[nn.Module], *, exact: nn.Module | None = None, methods: Sequence[str] = ()
) -> None:  # fmt: skip
    """Let ``model`` compute in ``dtype`` while its parameters keep theirs.

    Args:
        model: the module that is called; it holds ``blocks``.
        dtype: of weights while they are used.
        blocks: modules that get copies of their own, one at a time.
        exact: a module that computes in float32; its input is converted.
        methods: names of further methods of ``model`` that compute.
    """
    apart = {id(module) for block in (*blocks, *([exact] if exact is not None else [])) for module in block.modules()}
    root = _Unit([module for module in model.modules() if id(module) not in apart], dtype)
    root.around(model)
    for name in methods:
        setattr(model, name, root.within(getattr(model, name)))
    for block in blocks:
        _Unit(list(block.modules()), dtype).around(block)
    if exact is not None:
        exact.register_forward_pre_hook(lambda _, inputs: tuple(tensor.float() for tensor in inputs))
