"""A configuration whose fields are environment variables: one line declares type, default, range and meaning of each.

Guarantees: a variable has one declaration and one default. Imports only the standard library.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, Literal, Self, cast, get_args, get_origin, get_type_hints

from openclaw.config.variable import Value, Variable


def variable(name: str, default: Value, help: str, **limits: Any) -> Any:
    """Declare a field of an `EnvironmentConfig` that the environment variable ``name`` sets.

    Args:
        name: of the environment variable.
        default: value when the variable is unset or empty.
        help: one line.
        limits: ``choices`` (default: those of a ``Literal``), ``minimum``, ``maximum``, ``above``, ``aliases`` or
            ``secret`` of `Variable`.
    """
    return field(
        default=default, repr=not limits.get("secret"), metadata={"variable": {"name": name, "help": help, **limits}}
    )


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """Values of environment variables; a subclass declares them as fields with `variable`."""

    @classmethod
    @cache
    def variables(cls) -> tuple[Variable, ...]:
        """Return the declared variables in the order of the fields."""
        types = get_type_hints(cls)
        return tuple(
            Variable(field=each.name, default=cast(Value, each.default), **_type_of(types[each.name]) | declared)
            for each in fields(cls)
            if (declared := each.metadata.get("variable"))
        )

    @classmethod
    def declared(cls, field: str) -> Variable:
        """Return the variable of a field, for a process that reads no other."""
        return next(each for each in cls.variables() if each.field == field)

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the configuration that the environment describes; an empty value counts as unset.

        Raises:
            ConfigError: naming the first variable that cannot be used, and what to type.
        """
        return cls(**{each.field: each.read(environment)[0] for each in cls.variables()})

    def values(self) -> list[tuple[Variable, Value]]:
        """Return each variable with its value."""
        return [(each, getattr(self, each.field)) for each in self.variables()]


def _type_of(declared: Any) -> dict[str, Any]:
    """Return type and choices of a variable: ``float`` for ``float | None``, choices for a ``Literal``."""
    if get_origin(declared) is Literal:
        return {"type": str, "choices": get_args(declared)}
    (plain,) = [each for each in get_args(declared) or (declared,) if each is not NoneType]
    return {"type": plain}
