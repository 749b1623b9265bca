"""Base class of the arguments: typed attributes that still behave like an argparse Namespace."""

from __future__ import annotations

import copy
from argparse import Namespace
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self, TypeVar

# Plugins may expect a Namespace, so at run time it is one. Type checkers see a plain class instead, because
# Namespace declares every attribute that anyone could ask for.
_Flat = object if TYPE_CHECKING else Namespace

T = TypeVar("T")

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
    argparse's Namespace.
    """

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
