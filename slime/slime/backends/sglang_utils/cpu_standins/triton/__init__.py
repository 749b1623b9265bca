"""Import-only Triton: kernels can be declared, never launched.

Any name below ``triton.`` can be imported. Capitalised names are classes, others are callables that act as decorators.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Callable
from typing import Any

__version__ = "3.9.0"


class _PlaceholderMeta(type):
    def __getattr__(cls, name: str) -> Any:
        return _placeholder(name)


class _Placeholder(metaclass=_PlaceholderMeta):
    """Base of every capitalised name; accepts any arguments and has any attribute."""

    def __init__(self, *values: Any, **kwargs: Any) -> None:
        del values, kwargs

    def __getattr__(self, name: str) -> Any:
        return _placeholder(name)


class _PlaceholderFunction:
    """Any other name: usable as a decorator with or without arguments, a base class, or an annotation."""

    def __init__(self, name: str) -> None:
        self.__name__ = name

    def __call__(self, *values: Any, **kwargs: Any) -> Any:
        if len(values) == 1 and callable(values[0]) and not kwargs:
            return values[0]
        return lambda function: function

    def __getattr__(self, name: str) -> Any:
        return _placeholder(name)

    def __getitem__(self, index: Any) -> _PlaceholderFunction:
        return self

    def __or__(self, other: Any) -> _PlaceholderFunction:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return (_Placeholder,)


def _placeholder(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (_Placeholder,), {}) if name[:1].isupper() else _PlaceholderFunction(name)


class _Kernel:
    """A declared kernel: can be indexed by a grid, raises when launched."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.fn = function
        self.__name__ = getattr(function, "__name__", "kernel")
        self.__doc__ = getattr(function, "__doc__", None)
        self.__module__ = getattr(function, "__module__", __name__)

    def __getitem__(self, grid: Any) -> _Kernel:
        return self

    def __call__(self, *values: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"Triton kernel {self.__name__} needs an accelerator")


class _Module(types.ModuleType):
    def __getattr__(self, name: str) -> Any:
        value = _placeholder(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Makes every ``triton.x.y`` importable as an empty module."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        if fullname.startswith("triton."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        del module


class Config:
    """A configuration of ``autotune``; remembers its arguments."""

    def __init__(self, kwargs: dict[str, Any] | None = None, **options: Any) -> None:
        self.kwargs = kwargs or {}
        self.__dict__.update(options)


class constexpr:
    """Annotation of compile-time kernel arguments."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def __class_getitem__(cls, item: Any) -> type[constexpr]:
        return cls


class dtype:
    """Annotation of element types."""


def jit(function: Callable[..., Any] | None = None, **options: Any) -> Any:
    """Declare a kernel."""
    del options
    return _Kernel if function is None else _Kernel(function)


def _decorator_factory(*values: Any, **kwargs: Any) -> Callable[[Any], Any]:
    del values, kwargs
    return lambda function: function


autotune = heuristics = _decorator_factory


def cdiv(numerator: int, denominator: int) -> int:
    """Quotient rounded up."""
    return -(-numerator // denominator)


def next_power_of_2(value: int) -> int:
    """Smallest power of two that is at least ``value``."""
    return 1 << (value - 1).bit_length() if value > 0 else 1


def __getattr__(name: str) -> Any:
    return _placeholder(name)


sys.meta_path.insert(0, _Finder())

import triton.language as _language

_language.constexpr = constexpr
_language.dtype = dtype
_language.core = _Module("triton.language.core")
_language.core.constexpr = constexpr
