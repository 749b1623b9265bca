"""What every set of arguments can do beside holding its values."""

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
"""The default of an attribute that is required or derived: None until the command line is read, never in a run."""


def required(flag: str, value: T | None) -> T:
    """Return ``value`` of a flag that whoever asks cannot do without.

    Raises:
        ValueError: without it, naming the flag.
    """
    if value is None:
        raise ValueError(f"{flag} is needed here: add it")
    return value


class FlatArguments(_Flat):
    """Flat attributes, one per flag, in a class that knows their types.

    Attributes that no flag of the core declares (a method's own flags, new keys of ``--custom-config-path``) are set on the
    object and copied with it. ``vars``, ``copy``, ``pickle``, ``setattr`` and ``Namespace(**vars(args))`` work as on the
    Namespace of argparse.
    """

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Return arguments with ``values``, and the defaults for the rest."""
        args = cls()
        vars(args).update(values)
        return args

    def changed(self, **values: Any) -> Self:
        """Return a shallow copy with other ``values``.

        Raises:
            TypeError: for a name that these arguments do not have.
        """
        unknown = values.keys() - vars(self).keys()
        if unknown:
            raise TypeError(f"Arguments has no attribute {', '.join(map(repr, sorted(unknown)))}")
        changed = copy.copy(self)
        vars(changed).update(values)
        return changed
