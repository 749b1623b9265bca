"""Plugins on the command line: files given as paths, and a method's own flags.

Guarantees: a plugin file is stored as an absolute path, so actors find it wherever they run. A file without ``:name``
gets the first of its option's default names that the file defines. Files are parsed, not run, except the one of
``--custom-arguments-path``.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Callable, Sequence
from pathlib import Path

from groundwork.command_line import nearest_path
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.yaml_files import ARGUMENTS_FLAG, method_path_of
from slime.exceptions import PluginError
from slime.utils.misc import load_function

# Default names to look for in a file given without ``:name``, by option.
DEFAULT_NAMES: dict[str, tuple[str, ...]] = {
    "custom_arguments_path": ("add_custom_arguments",),
    "rollout_function_path": ("generate_rollout",),
    "eval_function_path": ("eval_rollout", "generate_rollout"),
    "custom_generate_function_path": ("generate",),
    "custom_rm_path": ("get_reward_model", "reward_func"),
    "custom_loss_function_path": ("compute_loss",),
}
_SUFFIXES = ("_path", "_paths")

AddArguments = Callable[[argparse.ArgumentParser], argparse.ArgumentParser | None]


def is_plugin_file(value: str) -> bool:
    """Return whether ``value`` is ``file.py`` or ``file.py:name``."""
    return value.partition(":")[0].endswith(".py")


def name_of_file(option: str, value: str) -> str:
    """Return ``/absolute/file.py:name`` for a plugin file of ``option``.

    Raises:
        ConfigError: the file or name does not exist; the message says what to write.
    """
    file_name, _, name = value.partition(":")
    file = Path(file_name).expanduser().resolve()
    flag = "--" + option.replace("_", "-")
    if not file.is_file():
        raise ConfigError(f"{flag} {value}: no such file{nearest_path(file_name)}")
    if name:
        return f"{file}:{name}"
    try:
        tree = ast.parse(file.read_text())
    except SyntaxError as error:
        raise ConfigError(f"{flag} {value}: {error}") from error
    defined = defined_names(tree)
    known = DEFAULT_NAMES.get(option, ())
    for candidate in known:
        if candidate in defined:
            return f"{file}:{candidate}"
    expected = f" has no {' or '.join(known)};" if known else ":"
    raise ConfigError(f"{flag} {value}{expected} say which name to use: {file_name}:NAME")


def defined_names(tree: ast.AST) -> set[str]:
    """Return the names that a module defines at top level, imports included; ``*`` for a star import."""
    names: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        else:
            names |= defined_names(node)
    return names


def resolve_plugin_files(args: Arguments) -> list[str]:
    """Replace every plugin file of ``args`` with its :func:`name_of_file`; return the problems."""
    problems = []
    for option, value in vars(args).items():
        if not option.endswith(_SUFFIXES) or not value:
            continue
        try:
            if isinstance(value, str) and is_plugin_file(value):
                setattr(args, option, name_of_file(option, value))
            elif isinstance(value, list):
                found = [name_of_file(option, one) if is_plugin_file(one) else one for one in value]
                setattr(args, option, found)
        except ConfigError as error:
            problems.append(str(error))
    return problems


def method_arguments(words: Sequence[str]) -> AddArguments | None:
    """Return ``add_custom_arguments`` of the method named in ``words`` or their ``--config`` file, or None.

    Raises:
        ConfigError: the function cannot be loaded.
    """
    path = method_path_of(words)
    if not path:
        return None
    path = name_of_file("custom_arguments_path", path) if is_plugin_file(path) else path
    try:
        function = load_function(path)
    except PluginError as error:
        raise ConfigError(f"{ARGUMENTS_FLAG}: {error}") from error

    def add(target: argparse.ArgumentParser) -> None:
        try:
            function(target)
        except argparse.ArgumentError as error:
            raise ConfigError(
                f"{ARGUMENTS_FLAG} {path}: {error}; the core or another method already has that flag; rename yours"
            ) from error

    return add
