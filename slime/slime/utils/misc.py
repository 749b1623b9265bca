"""Plugin loading and other small tools."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeGuard

from slime.exceptions import PluginError


@functools.cache
def load_function(path: str, default_name: str | None = None) -> Any:
    """Return the object that a plugin path names.

    Args:
        path: ``package.module.attr``, a file ``./folder/file.py`` (with ``default_name``), or ``./folder/file.py:attr``.
        default_name: attribute to use for a file path without one.

    Raises:
        PluginError: part of the path does not exist; the message says which.
    """
    if ".py" in path and ("/" in path or path.endswith(".py")):
        return _load_from_file(path, default_name)
    module_name, _, attribute = path.rpartition(".")
    if not module_name:
        raise PluginError(f"plugin path {path!r} needs the form module.attr or ./file.py:attr")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise PluginError(
            f"plugin path {path!r}: no module {error.name!r}; put its folder on PYTHONPATH or name a file: ./folder/file.py:attr"
        ) from error
    if not hasattr(module, attribute):
        raise PluginError(f"plugin path {path!r}: module {module_name} ({module.__file__}) has no {attribute!r}")
    return getattr(module, attribute)


def is_tuple(result: object) -> TypeGuard[tuple[Any, ...]]:
    """Return whether a plugin returned a tuple; what is in it is checked where it is read."""
    return isinstance(result, tuple)


def _load_from_file(path: str, default_name: str | None) -> Any:
    file_name, _, attribute = path.partition(":")
    attribute = attribute or (default_name or "")
    file = Path(file_name).resolve()
    if not file.is_file():
        raise PluginError(f"plugin file {file} does not exist")
    if not attribute:
        raise PluginError(f"plugin path {path!r} names no attribute; write {file_name}:attr")
    name = f"slime_plugin_{file.stem}_{abs(hash(str(file)))}"
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise PluginError(f"plugin file {file} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    if not hasattr(module, attribute):
        raise PluginError(f"plugin file {file} has no {attribute!r}")
    return getattr(module, attribute)


class Box:
    """Hold one value, so that Ray passes it on without resolving or copying it.

    Attributes:
        inner: the value.
    """

    def __init__(self, inner: Any) -> None:
        self.inner = inner


class SingletonMeta(type):
    """Metaclass for one instance per process and class; the first call's arguments win."""

    _instances: dict[type, Any] = {}

    def __call__(cls, *values: Any, **kwargs: Any) -> Any:
        """Return the instance, created on the first call."""
        if cls not in SingletonMeta._instances:
            SingletonMeta._instances[cls] = super().__call__(*values, **kwargs)
        return SingletonMeta._instances[cls]

    @staticmethod
    def clear(kind: type) -> None:
        """Forget the instance of ``kind``."""
        SingletonMeta._instances.pop(kind, None)


def group_by(items: Iterable[Any], key: Callable[[Any], Any] | None = None) -> dict[Any, list[Any]]:
    """Return ``{key(item): [items in order]}``; without ``key``, items are their own keys."""
    groups: dict[Any, list[Any]] = {}
    for item in items:
        groups.setdefault(key(item) if key else item, []).append(item)
    return groups


def should_run_periodic_action(
    rollout_id: int, interval: int | None, num_rollout_per_epoch: int | None = None, num_rollout: int | None = None
) -> bool:
    """Return whether an action is due after ``rollout_id``: every ``interval``, at epoch ends, and at the last rollout."""
    if interval is None:
        return False
    step = rollout_id + 1
    if num_rollout is not None and step == num_rollout:
        return True
    at_epoch_end = num_rollout_per_epoch is not None and step % num_rollout_per_epoch == 0
    return step % interval == 0 or at_epoch_end
