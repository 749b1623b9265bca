"""How a flag is declared: one `Option` per flag, grouped by topic.

Guarantee: each flag is declared in exactly one place. Nothing here imports torch, Ray or SGLang, so ``--help`` and
``--dry-run`` answer immediately on any machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slime.args import Arguments


@dataclass(frozen=True)
class Option:
    """One flag.

    Attributes:
        flag: the flag as typed.
        help: one line; the default is appended.
        type: type of the value; ``bool`` makes an on switch (``--x``), ``None`` with ``off`` an off switch.
        default: value without the flag.
        choices: allowed values, if not empty.
        nargs: as in argparse.
        dest: attribute of the parsed arguments; default: the flag with underscores.
        off: attribute that the flag switches off (``--disable-x``); it is True without the flag.
        aliases: other spellings.
        repeat: may be given several times; the value is the list of all, in order.
        undecided: a switch with both forms, ``--x`` and ``--no-x``, that is None if neither is given.
    """

    flag: str
    help: str
    type: Callable[[str], Any] | None = str
    default: Any = None
    choices: tuple[str, ...] = ()
    nargs: str | None = None
    dest: str | None = None
    off: str | None = None
    aliases: tuple[str, ...] = ()
    repeat: bool = False
    undecided: bool = False

    @property
    def attribute(self) -> str:
        """Name of the attribute that holds the value."""
        return self.off or self.dest or self.flag.lstrip("-").replace("-", "_")

    def is_given(self, args: Arguments) -> bool:
        """Return whether ``args`` hold a value other than the default."""
        unset = True if self.off else bool(self.default) if self.type is bool and not self.undecided else self.default
        return getattr(args, self.attribute) != unset

    def add_to(self, group: Any) -> None:
        """Declare the flag on an argparse group."""
        names = [self.flag, *self.aliases]
        if self.off:
            group.add_argument(*names, dest=self.off, action="store_false", default=True, help=self.help)
            return
        shown = "" if self.default is None else f" (default: {self.default})"
        text = (self.help + shown).replace("%", "%%")
        if self.type is bool and (self.default is True or self.undecided):
            action = argparse.BooleanOptionalAction
            group.add_argument(*names, dest=self.attribute, action=action, default=self.default, help=self.help)
        elif self.repeat:
            group.add_argument(*names, dest=self.attribute, action="append", type=self.type, default=None, help=text)
        elif self.type is bool:
            group.add_argument(*names, dest=self.attribute, action="store_true", default=False, help=self.help)
        else:
            group.add_argument(
                *names,
                dest=self.attribute,
                type=self.type,
                default=self.default,
                choices=self.choices or None,
                nargs=self.nargs,
                help=text,
            )


@dataclass(frozen=True)
class Group:
    """Flags of one topic."""

    title: str
    options: tuple[Option, ...]

    def add_to(self, parser: argparse.ArgumentParser) -> None:
        """Declare all flags of the topic."""
        group = parser.add_argument_group(self.title)
        for option in self.options:
            option.add_to(group)


def flag_of(attribute: str) -> str:
    """Return the flag of ``attribute``, for attributes named after their flag."""
    return f"--{attribute.replace('_', '-')}"


def comma_list(text: str) -> list[str]:
    """Parse ``a,b,c``."""
    return [part.strip() for part in text.split(",") if part.strip()]


def json_object(text: str) -> dict:
    """Parse a JSON object.

    Raises:
        argparse.ArgumentTypeError: the text is anything else.
    """
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise argparse.ArgumentTypeError(f"not JSON: {error}; write it like '{{\"key\": 1}}'") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"needs a JSON object, got {text!r}")
    return value
