"""Base class of the arguments: typed attributes that still behave like an argparse Namespace, and a view of them as a mapping."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections import ChainMap
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

# Plugins may expect a Namespace, so at run time it is one. Type checkers see a plain class instead, because
# Namespace declares every attribute that anyone could ask for.
_Flat = object if TYPE_CHECKING else Namespace

T = TypeVar("T")

READ: set[str] = set()
"""Names of the arguments that this process has read."""
DERIVED: Any = None
"""Default of a required or derived attribute: None until the command line is parsed, never None during a run."""


def required(flag: str, value: T | None) -> T:
    """Return ``value``, or raise if a flag that the caller depends on was not given.

    Raises:
        ValueError: ``value`` is None; the message names the flag.
    """
    if value is None:
        raise ValueError(f"{flag} is required here: add it")
    return value


class FlatArguments(_Flat):
    """Flat attributes, one per flag, in a class that knows their types.

    Attributes that no core flag declares (a method's own flags, new keys of ``--custom-config-path``) are set on the
    object and copied with it. ``vars``, ``copy``, ``pickle``, ``setattr`` and ``Namespace(**vars(args))`` work as on
    argparse's Namespace. Reading one is noted in `READ`; ``vars`` is no reading.
    """

    if not TYPE_CHECKING:  # a type checker would allow any attribute

        def __getattribute__(self, name: str, _note: Any = READ.add, _attribute: Any = object.__getattribute__) -> Any:
            _note(name)
            return _attribute(self, name)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return arguments with ``values``, and defaults for the rest."""
        args = cls()
        vars(args).update(values)
        return args

    def changed(self, **values: Any) -> Self:
        """Return a shallow copy with these ``values`` replaced.

        Raises:
            TypeError: a name is not an attribute of these arguments.
        """
        unknown = values.keys() - vars(self).keys()
        if unknown:
            raise TypeError(f"Arguments has no attribute {', '.join(map(repr, sorted(unknown)))}")
        changed = copy.copy(self)
        vars(changed).update(values)
        return changed


_CHECKPOINT = "prm_model_path"


class MissingArgumentError(KeyError):
    """A plugin reads a value that the run does not have; the message says what to type."""

    def __str__(self) -> str:
        return str(self.args[0])


class ConfigView(Mapping[str, Any]):
    """A read-only view of the arguments: ``config["lr"]``, ``config.get("lr")`` and ``config.lr`` are the same value.

    ``extra`` has further values and wins. ``prm_model_path`` is there only if the run names it: an argument that was
    derived from the policy's checkpoint would make the policy a reward model.
    """

    def __init__(self, args: FlatArguments, extra: Mapping[str, Any] | None = None) -> None:
        self._values = ChainMap(dict(extra or {}), vars(args))

    def _has(self, name: str) -> bool:
        values = self._values
        return name in values and (name != _CHECKPOINT or values[name] not in (None, values.get("hf_checkpoint")))

    def __getitem__(self, name: str) -> Any:
        if self._has(name):
            READ.add(name)
            return self._values[name]
        if name == _CHECKPOINT:
            raise MissingArgumentError(
                f"config[{name!r}] is the checkpoint of a reward model, not the policy's; add --prm-model-path PATH"
            )
        raise MissingArgumentError(
            f"the run has no argument {name!r}; write config.get({name!r}, DEFAULT), or set it in a file of --custom-config-path"
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except MissingArgumentError as error:
            raise AttributeError(str(error)) from error

    def __iter__(self) -> Iterator[str]:
        return filter(self._has, self._values)

    def __len__(self) -> int:
        return sum(1 for _ in self)
