"""YAML files of arguments: ``--config`` (flags, read before the command line) and ``--custom-config-path`` (after it).

Guarantees: each flag parses its value in a file with its own type and choices. An unknown key of ``--config`` is an
error that names the nearest flag. Only ``--custom-config-path`` can create attributes that no flag declares.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from typing import Any

from groundwork.command_line import nearest_flag
from groundwork.exceptions import ConfigError
from groundwork.yaml_file import read_yaml_mapping
from slime.args import Arguments
from slime.arguments.option import comma_list, json_object
from slime.arguments.refused import REFUSED_PREFIX, refusals

CONFIG_FLAG = "--config"
ARGUMENTS_FLAG = "--custom-arguments-path"


def config_file_of(argv: Sequence[str]) -> str | None:
    """Return the ``--config`` file of a command line, or None.

    Raises:
        ConfigError: there are two.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument(CONFIG_FLAG, action="append", default=[])
    return only_config(finder.parse_known_args(list(argv))[0].config)


def only_config(paths: Sequence[str]) -> str | None:
    """Return the one ``--config`` file of flags, or None without any.

    Raises:
        ConfigError: there are more.
    """
    if len(paths) > 1:
        raise ConfigError(
            f"{CONFIG_FLAG} {paths[0]} and {CONFIG_FLAG} {paths[1]} both hold flags; put them into one file"
        )
    return paths[0] if paths else None


def flag_in_words(words: Sequence[str], flag: str) -> str | None:
    """Return the value of a flag from a command line, else from its ``--config`` file, else None.

    Raises:
        ConfigError: the file cannot be read or the value is not a path.
    """
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument(flag, dest="found")
    path, file = finder.parse_known_args(list(words))[0].found, config_file_of(words)
    if path is not None or file is None:
        return path
    given = [
        word
        for key, value in read_yaml_mapping(CONFIG_FLAG, file).items()
        if (action := find_action(finder, key)) is not None
        for word in words_of(action, value)
    ]
    return finder.parse_args(given).found


def with_config_file(parser: argparse.ArgumentParser, argv: Sequence[str]) -> list[str]:
    """Return ``argv`` preceded by the flags of its ``--config`` file, so that the command line wins.

    Raises:
        ConfigError: the file cannot be used.
    """
    path = config_file_of(argv)
    if path is None:
        return list(argv)
    result = file_flags(parser, path)
    return [*(word for words in result.values() for word in words), *argv]


def file_flags(parser: argparse.ArgumentParser, path: str) -> dict[str, list[str]]:
    """Return the words of each flag that a ``--config`` file sets, by the flag's attribute; a switch turned off may have none.

    Raises:
        ConfigError: the file cannot be read, names a flag twice or an unknown one, or a flag refuses its value.
    """
    results: dict[str, list[str]] = {}
    spelled: dict[str, str] = {}
    for key, value in read_yaml_mapping(CONFIG_FLAG, path).items():
        action = find_action(parser, key)
        if action is None:
            flag = "--" + key.lstrip("-").replace("_", "-")
            hint = nearest_flag(flag, list(parser._option_string_actions))
            raise ConfigError(f"{CONFIG_FLAG} {path}: there is no flag {key!r}{hint}")
        if CONFIG_FLAG in action.option_strings:
            raise ConfigError(f"{CONFIG_FLAG} {path}: a file cannot include another one; put its flags here")
        if action.dest in spelled:
            both = f"{spelled[action.dest]} and {key}"
            raise ConfigError(f"{CONFIG_FLAG} {path}: {both} set the same; keep one of them")
        spelled[action.dest] = key
        if value is not None:
            results[action.dest] = words_of(action, value)
    return results


def apply_custom_config(parser: argparse.ArgumentParser, args: Arguments) -> list[str]:
    """Set every key of ``--custom-config-path`` on ``args``; return one line per refused flag among them."""
    if not args.custom_config_path:
        return []
    values = read_yaml_mapping("--custom-config-path", args.custom_config_path)
    known = {key: action for key in values if (action := find_action(parser, key)) is not None}
    for action in known.values():
        early = {CONFIG_FLAG, ARGUMENTS_FLAG} & set(action.option_strings)
        if early:
            raise ConfigError(
                f"--custom-config-path {args.custom_config_path}: {early.pop()} is needed before this file is read; "
                "give it on the command line"
            )
    words = [word for key, action in known.items() for word in words_of(action, values[key])]
    parsed = parser.parse_args(words)
    problems = refusals(Arguments.of(vars(parsed)))
    for key, value in values.items():
        if key in known:
            if hasattr(parsed, known[key].dest):
                setattr(args, known[key].dest, None if value is None else getattr(parsed, known[key].dest))
        elif not key.isidentifier():
            raise ConfigError(f"--custom-config-path: {key!r} cannot be an attribute; write {key.replace('-', '_')}")
        else:
            setattr(args, key, value)
    return problems


def find_action(parser: argparse.ArgumentParser, key: str) -> argparse.Action | None:
    """Return the flag that a file's key names; ``_`` equals ``-``, and leading dashes are optional."""
    name = "--" + key.lstrip("-")
    actions: Mapping[str, argparse.Action] = parser._option_string_actions
    return actions.get(name) or actions.get(name.replace("_", "-"))


def words_of(action: argparse.Action, value: Any) -> list[str]:
    """Return a YAML value of a flag as command-line words.

    Null leaves the flag out, and so does false for a refused flag.

    Raises:
        ConfigError: the flag does not accept this value.
    """
    flag = next(name for name in action.option_strings if name.startswith("--"))
    if value is None:
        return []
    if action.nargs == 0:
        if not isinstance(value, bool):
            raise ConfigError(f"{flag} is a switch; write true or false, not {value!r}")
        if value:
            return [flag]
        off = [name for name in action.option_strings if name.startswith("--no-")]
        if action.default is True and action.const is True and not off:
            raise ConfigError(f"{flag} is always on here and cannot be false: {action.help}; remove it")
        return off[:1]
    if value is False and action.dest.startswith(REFUSED_PREFIX):
        return []
    if isinstance(value, bool) and action.nargs != "*":
        raise ConfigError(f"{flag} needs a value, not {str(value).lower()}")
    if isinstance(value, dict):
        if action.type is not json_object:
            raise ConfigError(f"{flag} needs a plain value, not nested names")
        return [f"{flag}={json.dumps(value)}"]
    if isinstance(value, list):
        if action.type is comma_list:
            return [f"{flag}={','.join(map(str, value))}"]
        if action.nargs not in ("+", "*"):
            raise ConfigError(f"{flag} takes one value, not a list")
        return [flag, *map(str, value)]
    return [flag, str(value)] if action.nargs in ("+", "*") else [f"{flag}={value}"]
