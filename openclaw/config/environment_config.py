"""Declare environment variables as typed fields, each with its default, range and meaning.

Guarantee: a variable has one declaration and one default. Imports only the standard library.
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
    """Values of environment variables; a subclass declares each as a field with `variable`."""

    @classmethod
    @cache
    def variables(cls) -> tuple[Variable, ...]:
        """Return the declared variables in field order."""
        types = get_type_hints(cls)
        return tuple(
            Variable(field=each.name, default=cast(Value, each.default), **_type_of(types[each.name]) | declared)
            for each in fields(cls)
            if (declared := each.metadata.get("variable"))
        )

    @classmethod
    def declared(cls, field: str) -> Variable:
        """Return the variable of one field, for a process that reads only this one."""
        return next(each for each in cls.variables() if each.field == field)

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the configuration of this environment; an empty value counts as unset.

        Raises:
            ConfigError: a variable is invalid; the message names the first one and says what to type.
        """
        return cls(**{each.field: each.read(environment)[0] for each in cls.variables()})

    def values(self) -> list[tuple[Variable, Value]]:
        """Return each variable with its value."""
        return [(each, getattr(self, each.field)) for each in self.variables()]


def _type_of(declared: Any) -> dict[str, Any]:
    """Return a variable's type and choices: ``float`` for ``float | None``, choices for a ``Literal``."""
    if get_origin(declared) is Literal:
        return {"type": str, "choices": get_args(declared)}
    (plain,) = [each for each in get_args(declared) or (declared,) if each is not NoneType]
    return {"type": plain}
