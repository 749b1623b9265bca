"""Command lines that answer a mistyped word in one line: what is wrong, and what to type.

Guarantees: no abbreviated flags and no usage block before an error. An unknown flag, choice or path is answered with the
nearest known one. Imports the standard library and `groundwork.private_files`, which does the same, so an answer waits
for no other import.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from groundwork.private_files import OutputError, check_output

MAX_PORT = 65535
ALIKE = 0.7
"""Less alike words are not a typing error: difflib's 0.6 answers ``--learning-rat`` with ``--sglang-lora-paths``."""
NUMBERS = {int: "a whole number", float: "a number"}
REQUIRED = re.compile("the following arguments are required: (.+)")


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ``; did you mean X?`` for a mistyped word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=ALIKE)
    return f"; did you mean {near[0]}?" if near else ""


def named_by_beginning(begin: str, known: Sequence[str], kind: str, listed: str) -> str:
    """Return the name that ``begin`` is, or the only one that begins like that.

    Args:
        begin: what a person typed.
        known: all names.
        kind: what they name, such as ``session``.
        listed: how to see them all, the end of the message.

    Raises:
        LookupError: there is none, or more than one.
    """
    results = [begin] if begin in known else [name for name in known if name.startswith(begin)]
    if len(results) == 1:
        return results[0]
    if results:
        raise LookupError(
            f"{len(results)} {kind}s begin with {begin!r}, such as {results[0]} and {results[1]}; type more"
        )
    raise LookupError(f"no {kind} {begin!r}{nearest(begin, known)}; {listed}")


def nearest_flag(word: str, flags: Iterable[str]) -> str:
    """Return ``; did you mean --x?`` for a mistyped flag, with any number of dashes before it, or nothing."""
    long = [flag for flag in flags if flag.startswith("--")] if word.startswith("-") else []
    return nearest("--" + word.partition("=")[0].lstrip("-").replace("_", "-"), long)


def nearest_path(path: str | Path) -> str:
    """Return ``; did you mean X?`` for a missing path, X with one part of it replaced by an existing sibling, or nothing."""
    path = Path(path)
    for part in reversed([path, *path.parents]):
        if (expanded := part.expanduser()).exists():
            continue
        try:
            beside = [item.name for item in expanded.parent.iterdir()]
        except OSError:
            return ""
        near = [part.with_name(name) / path.relative_to(part) for name in difflib.get_close_matches(part.name, beside)]
        whole = next((item for item in near if item.expanduser().exists()), None)
        return f"; did you mean {whole}?" if whole else ""
    return ""


def port_number(text: str) -> int:
    """Parse a port; 0 stands for any free one.

    Raises:
        argparse.ArgumentTypeError: the text is not a port.
    """
    if not text.isascii() or not text.isdigit() or int(text) > MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; use a number from 0 to {MAX_PORT}")
    return int(text)


def names_a_user(url: str) -> bool:
    """Return whether a URL holds a name or a password."""
    return "@" in re.split(r"[/?#]", url.partition("://")[2] or url, maxsplit=1)[0]


def server_url(text: str) -> str:
    """Parse the URL of a server, which messages and reports show.

    Raises:
        argparse.ArgumentTypeError: it holds a name or a password.
    """
    if names_a_user(text):
        raise argparse.ArgumentTypeError("leave the name and password out of the URL; a key goes to the environment")
    return text


def existing_folder(text: str) -> Path:
    """Parse the path of an existing folder; the shell leaves a quoted ``~`` alone, so it is read here.

    Raises:
        argparse.ArgumentTypeError: there is no such folder.
    """
    if not (path := Path(text).expanduser()).is_dir():
        what = "is a file, not a folder" if path.is_file() else "no such folder"
        raise argparse.ArgumentTypeError(f"{text}: {what}{nearest_path(path)}")
    return path


def output_file(text: str, *, makes_folder: bool = False) -> Path:
    """Parse the path of a file that a command will write; its folder must exist, unless the command makes it.

    Raises:
        argparse.ArgumentTypeError: it is a folder, in no folder, or ``-``.
    """
    path = Path(text).expanduser()
    try:
        check_output(path, makes_folder=makes_folder)
    except OutputError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return path


def new_output_file(text: str) -> Path:
    """Parse the path of a file that a command will write, with its folders.

    Raises:
        argparse.ArgumentTypeError: as `output_file`.
    """
    return output_file(text, makes_folder=True)


def as_list(title: str, problems: Sequence[str]) -> str:
    """Return one problem as it is, several as a list below ``title``."""
    return problems[0] if len(problems) == 1 else "\n".join([f"{title}:", *(f"  - {problem}" for problem in problems)])


class CommandLine(argparse.ArgumentParser):
    """Argument parser whose errors are one line each.

    Attributes:
        further_flags: flags of another program that hands its unknown words to this parser; they are suggested too.
        missing_hints: what to type for a missing argument, by its name.

    Example:
        >>> parser = CommandLine(prog="serve")
        >>> _ = parser.add_argument("--port", type=int, default=30000)
        >>> parser.parse_args(["--port", "8000"]).port
        8000
    """

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **settings})
        self.further_flags: Sequence[str] = ()
        self.missing_hints: dict[str, str] = {}
        self._typed: Sequence[str] = ()
        self._takes_all = False

    def parse_known_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse, and remember the words for the error messages."""
        self._typed = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(self._typed, namespace)

    def parse_args(self, args: Iterable[str] | None = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Parse a command line in which this parser knows every word."""
        self._takes_all = True
        values, unknown = self.parse_known_args(args, namespace)
        if unknown:
            self.unknown(unknown)
        return values

    def error(self, message: str) -> NoReturn:
        """Exit with code 2 and the message; a mistyped flag explains a missing one."""
        if match := REQUIRED.fullmatch(message):
            missing = match[1].split(", ")
            self._refuse_mistyped(self.known_flags() if self._takes_all else [*missing])
            hints = [f"{name} is {self.missing_hints[name]}" for name in missing if name in self.missing_hints]
            message = f"add {' '.join(map(self._as_typed, missing))}; {'; '.join(hints) or '--help explains it'}"
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')}\n")

    def unknown(self, words: Sequence[str]) -> NoReturn:
        """Exit with code 2 and a line per unknown word, with the nearest flag."""
        known = [*self.known_flags(), *self.further_flags]
        flags = [word for word in words if word.startswith("-")]
        self.error("\n".join(f"unknown argument {word}{nearest_flag(word, known)}" for word in flags or words))

    def known_flags(self) -> list[str]:
        """Return every flag of this parser and of its commands."""
        actions = [name for action in self._actions for name in action.option_strings]
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                actions += [flag for command in action.choices.values() for flag in command.known_flags()]
        return actions

    def _refuse_mistyped(self, flags: Sequence[str]) -> None:
        """Exit if an unknown word is near one of ``flags``."""
        known = self.known_flags()
        typed = [word for word in self._typed if word.startswith("--") and word.partition("=")[0] not in known]
        if near := [word for word in typed if nearest_flag(word, flags)]:
            self.unknown(near)

    def _as_typed(self, name: str) -> str:
        """Return a required argument as a user types it: ``--save FOLDER``."""
        for action in self._actions:
            if action.option_strings and "/".join(action.option_strings) == name:
                value = action.metavar or action.dest.upper()
                return action.option_strings[-1] if action.nargs == 0 else f"{action.option_strings[-1]} {value}"
        return name

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            text = f"{str(value)!r} is not one of {', '.join(choices)}{nearest(str(value), choices)}"
            raise argparse.ArgumentError(action, text)

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)  # pyright: ignore[reportAttributeAccessIssue]
        except argparse.ArgumentError as error:
            if kind := NUMBERS.get(action.type):  # pyright: ignore[reportArgumentType, reportCallIssue]
                error.message = f"{arg_string!r} is not {kind}"
            raise
