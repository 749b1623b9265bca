"""Declare environment variables as typed fields, each with its name, default, range and meaning, and read them.

Guarantees: a variable has one declaration and one default. An invalid text is a `ConfigError` that names the variable
and says what to type. Imports only the standard library and the error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from types import NoneType
from typing import Any, Literal, Self, cast, get_args, get_origin, get_type_hints

from groundwork.exceptions import ConfigError

Value = str | int | float | bool | None
TRUE_WORDS = ("1", "true", "yes", "on")
FALSE_WORDS = ("0", "false", "no", "off")


@dataclass(frozen=True)
class Variable:
    """The declaration of one environment variable.

    Attributes:
        name: name of the environment variable.
        field: configuration field that holds the value.
        type: type of the value.
        default: value if the variable is unset or empty.
        help: one line.
        choices: the allowed values; empty: any.
        minimum: smallest allowed number.
        maximum: largest allowed number.
        above: number that the value must exceed.
        aliases: other names of the same variable.
        secret: whether to hide the value.
        flags: of command lines that set it, besides those of its names, such as ``--benchmark`` for ``SWE_BENCHMARK``.

    Example:
        >>> Variable("PORT", "port", int, 30000, "port of the gateway", minimum=1).read({"PORT": "8000"})[0]
        8000
    """

    name: str
    field: str
    type: type
    default: Value
    help: str
    choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    aliases: tuple[str, ...] = ()
    secret: bool = False
    flags: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Return the variable's name and its aliases."""
        return (self.name, *self.aliases)

    def is_set(self, environment: Mapping[str, str]) -> bool:
        """Return whether the variable is set under one of its names."""
        return any(environment.get(name) for name in self.names)

    def setting(self, value: object) -> dict[str, str]:
        """Return the environment variables that set this one, with its other names unset."""
        return {**dict.fromkeys(self.aliases, ""), self.name: str(value)}

    def read(self, environment: Mapping[str, str]) -> tuple[Value, str]:
        """Return the value and the name it was set under.

        If the variable is unset or empty, return its default and the word ``default``.

        Raises:
            ConfigError: the value is invalid, or two of the names have different values.
        """
        results = {name: environment[name] for name in self.names if environment.get(name)}
        if len(set(results.values())) > 1:
            raise ConfigError(f"{' and '.join(results)} name the same thing and differ; set only {self.name}")
        if not results:
            return self.default, "default"
        name, text = next(iter(results.items()))
        return self.parse(text, name), name

    def parse(self, text: str, name: str) -> Value:
        """Return the value of ``text``, which was set under ``name``.

        Raises:
            ConfigError: the text is invalid.
        """
        try:
            value = _PARSERS[self.type](text)
        except ValueError as error:
            raise ConfigError(f"{name}={text!r} is not {_TYPE_WORDS[self.type]}; {self.help}") from error
        if self.choices and value not in self.choices:
            raise ConfigError(f"{name}={text!r} is not a choice; use one of {', '.join(self.choices)}")
        if isinstance(value, int | float) and not isinstance(value, bool):
            self._check_range(value, name)
        return value

    def _check_range(self, value: float, name: str) -> None:
        if not value == value or value in (float("inf"), float("-inf")):
            raise ConfigError(f"{name}={value} is not a finite number; use a finite one")
        if self.minimum is not None and value < self.minimum:
            raise ConfigError(f"{name}={value} is too small; use {self.minimum:g} or more")
        if self.maximum is not None and value > self.maximum:
            raise ConfigError(f"{name}={value} is too large; use {self.maximum:g} or less")
        if self.above is not None and value <= self.above:
            raise ConfigError(f"{name}={value} is too small; use a number above {self.above:g}")


def _parse_bool(text: str) -> bool:
    word = text.strip().lower()
    if word in TRUE_WORDS:
        return True
    if word in FALSE_WORDS:
        return False
    raise ValueError(text)


_PARSERS: dict[type, Callable[[str], Value]] = {str: str, int: int, float: float, bool: _parse_bool}
_TYPE_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "1 or 0"}


def variable(name: str, default: Value, help: str, **limits: Any) -> Any:
    """Declare a field of an `EnvironmentConfig` that the environment variable ``name`` sets.

    Args:
        name: of the environment variable.
        default: value when the variable is unset or empty.
        help: one line.
        limits: ``choices`` (default: those of a ``Literal``), ``minimum``, ``maximum``, ``above``, ``aliases``,
            ``secret`` or ``flags`` of `Variable`.
    """
    return field(
        default=default, repr=not limits.get("secret"), metadata={"variable": {"name": name, "help": help, **limits}}
    )


@dataclass(frozen=True, kw_only=True)
class EnvironmentConfig:
    """Values of environment variables; a subclass declares each as a field with `variable`.

    Example:
        >>> @dataclass(frozen=True, kw_only=True)
        ... class Sampling(EnvironmentConfig):
        ...     temperature: float = variable("TEMPERATURE", 1.0, "temperature of the policy", minimum=0.0)
        >>> Sampling.from_env({"TEMPERATURE": "0.7"}).temperature
        0.7
    """

    @classmethod
    @cache
    def variables(cls) -> tuple[Variable, ...]:
        """Return the declared variables in field order."""
        types = get_type_hints(cls)
        return tuple(
            Variable(field=item.name, default=cast(Value, item.default), **_type_of(types[item.name]) | declared)
            for item in fields(cls)
            if (declared := item.metadata.get("variable"))
        )

    @classmethod
    def declared(cls, field: str) -> Variable:
        """Return the variable of one field, for a process that reads only this one."""
        return next(item for item in cls.variables() if item.field == field)

    @classmethod
    def from_env(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Return the configuration of this environment; an empty value counts as unset.

        Raises:
            ConfigError: a variable is invalid; the message names the first one and says what to type.
        """
        return cls(**{item.field: item.read(environment)[0] for item in cls.variables()})

    def values(self) -> list[tuple[Variable, Value]]:
        """Return each variable with its value."""
        return [(item, getattr(self, item.field)) for item in self.variables()]


def _type_of(declared: Any) -> dict[str, Any]:
    """Return a variable's type and choices: ``float`` for ``float | None``, choices for a ``Literal``."""
    if get_origin(declared) is Literal:
        return {"type": str, "choices": get_args(declared)}
    (plain,) = [item for item in get_args(declared) or (declared,) if item is not NoneType]
    return {"type": plain}


def refuse_set(older: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> None:
    """Refuse variables without a meaning here, each with what to use instead.

    Raises:
        ConfigError: names all that are set.
    """
    if results := [f"unset {name}: {why}" for name, why in older.items() if environment.get(name)]:
        raise ConfigError("; ".join(results))
