"""Plugins on the command line: files given as paths, a plugin's own flags, and whether all plugins exist.

Guarantees: a plugin file is stored as an absolute path, so actors find it wherever they run. A file without ``:name``
gets the first of its option's default names that the file defines, or else the only function or class of a form of
`slime.arguments.plugin_forms`. Modules are located where Python would find them and
parsed, not run, except the one that declares flags. Names that only running code could reveal (names set at run time,
compiled modules) count as present.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import inspect
import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from groundwork.command_line import nearest_path
from groundwork.exceptions import ConfigError
from slime.args import Arguments, ConfigView
from slime.arguments.option import flag_of
from slime.arguments.plugin_forms import (
    CHECKPOINT_NAMES,
    FormError,
    Function,
    check_loss_signature,
    check_reward_class,
    episode_values,
    loss_values,
    recognised,
    signature_in_source,
)
from slime.arguments.yaml_files import ARGUMENTS_FLAG, flag_in_words
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
GENERATE_FLAG = "--custom-generate-function-path"
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
    flag = flag_of(option)
    if not file.is_file():
        raise ConfigError(f"{flag} {value}: no such file{_in_a_folder(file_name) or nearest_path(file_name)}")
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
    of_a_form = recognised(option, tree)
    if len(of_a_form) == 1:
        return f"{file}:{of_a_form[0]}"
    expected = f" has no {' or '.join(known)};" if known else ":"
    names = " or ".join(f"{file_name}:{one}" for one in of_a_form or ["NAME"])
    raise ConfigError(f"{flag} {value}{expected} say which name to use: {names}{_other_flag(option, file_name, tree)}")


def _in_a_folder(file_name: str) -> str:
    """Return ``; did you mean X?`` for a bare file name that a folder of the working directory has, or nothing."""
    found = [] if os.sep in file_name else sorted(Path().glob(f"*/{file_name}"))
    return f"; did you mean {found[0]}?" if found else ""


def _other_flag(option: str, file_name: str, tree: ast.Module) -> str:
    """Return which flag takes what a file has, if that is not ``option`` but plays one episode."""
    episodes = recognised("custom_generate_function_path", tree) if option == "rollout_function_path" else []
    return f". {episodes[0]} plays one episode: use {GENERATE_FLAG} {file_name}" if episodes else ""


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
                results = [name_of_file(option, one) if is_plugin_file(one) else one for one in value]
                setattr(args, option, results)
        except ConfigError as error:
            problems.append(str(error))
    return problems


def method_arguments(words: Sequence[str]) -> AddArguments | None:
    """Return what declares the flags of a method: ``--custom-arguments-path`` in ``words`` or their ``--config`` file, or else
    ``add_custom_arguments`` in the module of ``--custom-generate-function-path``; None without either.

    Raises:
        ConfigError: the function cannot be loaded.
    """
    path = flag_in_words(words, ARGUMENTS_FLAG) or _declared_beside(flag_in_words(words, GENERATE_FLAG))
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


def _declared_beside(generate: str | None) -> str | None:
    """Return the path of ``add_custom_arguments`` in the module of a generate function, which is parsed and not run."""
    if not generate:
        return None
    if is_plugin_file(generate):
        file = Path(generate.partition(":")[0]).expanduser()
    else:
        module = generate.rpartition(".")[0]
        spec = module_spec(module) or module_spec(module.rpartition(".")[2])  # older guides have it in a package
        file = Path(spec.origin) if spec is not None and spec.origin else Path()
    try:
        tree = ast.parse(file.read_text()) if file.suffix == ".py" and file.is_file() else None
    except (SyntaxError, UnicodeDecodeError):
        tree = None  # the check of plugins says so
    name = DEFAULT_NAMES["custom_arguments_path"][0]
    for node in tree.body if tree else ():
        if isinstance(node, ast.ImportFrom) and any((alias.asname or alias.name) == name for alias in node.names):
            return f"{node.module}.{name}"  # its own module may be lighter than the plugin's
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return f"{file.resolve()}:{name}"
    return None


PLUGIN_OPTIONS = (
    "rollout_function_path",  # first: the evaluation function defaults to it
    "before_push_path",
    "buffer_filter_path",
    "custom_advantage_function_path",
    "custom_convert_samples_to_train_data_path",
    "custom_eval_rollout_log_function_path",
    "custom_generate_function_path",
    "custom_loss_function_path",
    "custom_megatron_before_log_prob_hook_path",
    "custom_megatron_before_train_step_hook_path",
    "custom_megatron_init_path",
    "custom_model_provider_path",
    "custom_pg_loss_reducer_function_path",
    "custom_reward_post_process_path",
    "custom_rm_path",
    "custom_rollout_log_function_path",
    "custom_tis_function_path",
    "data_source_path",
    "dynamic_sampling_filter_path",
    "eval_function_path",
    "rollout_all_samples_process_path",
    "rollout_data_postprocess_path",
    "rollout_sample_filter_path",
    "rollout_sample_hook_path",
)
_OF_EVAL_SETS = ("custom_rm_path", "custom_generate_function_path")


def missing_plugins(args: Arguments) -> list[str]:
    """Return one line per plugin of ``args`` whose module or name does not exist."""
    return [f"{where} {path}: {why}" for where, path in _named(args) if (why := _why_missing(path))]


def never_mentioned(args: Arguments, names: Collection[str]) -> frozenset[str]:
    """Return which of the attributes ``names`` no code of this run can read, under any condition.

    These are the ones that no word of the program names outside the declarations, the derivations included and the other
    training backend left out. Of a method's flag the words after its prefix count, too: ``steps`` for ``gui_steps``.
    Empty if a plugin lies outside the program, because it may read anything.
    """
    core = Path(__file__).resolve().parents[1]
    program = core.parents[1]
    other = "fsdp_utils" if args.train_backend == "megatron" else "megatron_utils"
    folders = [each for each in program.iterdir() if each.is_dir() and not each.name.startswith((".", *_NOT_RUN))]
    files = {file for folder in folders for file in folder.rglob("*.py")}
    if not (program / "openclaw").is_dir() or not {_file_of(path) for _, path in _named(args)} <= files:
        return frozenset()
    own = vars(Arguments())
    words = {
        name: {name} if name in own else {name.split("_", at)[at] for at in range(name.count("_") + 1)}
        for name in names
    }
    for file in files:
        inside = file.relative_to(core).parts if file.is_relative_to(core) else ()
        if inside and inside[0] == "arguments":
            mentioned = _derived_from(ast.parse(file.read_text()))
        elif not (inside and inside[0] in _DECLARE) and other not in inside:
            mentioned = set(_WORD.findall(_without_declarations(file.read_text())))
        else:
            continue
        words = {name: each for name, each in words.items() if not each & mentioned}
    return frozenset(words)


def _without_declarations(source: str) -> str:
    """Return a module's source without the functions that declare a method's flags."""
    name = DEFAULT_NAMES["custom_arguments_path"][0]
    if f"def {name}(" not in source:
        return source
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, Function) and node.name == name:
            end = node.end_lineno or node.lineno
            lines[node.lineno - 1 : end] = [""] * (end - node.lineno + 1)
    return "\n".join(lines)


_DECLARE = ("args", "contract")
"""Folders of the core that name every flag and use none, besides this one."""
_NOT_RUN = ("tests", "lab", "benchmarks")
"""Folders of the program that no run reads."""
_WORD = re.compile(r"\w+")


def _derived_from(tree: ast.Module) -> set[str]:
    """Return the attributes that a module's derivations turn into others: what they do is done by those."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and "derive" in node.name]
    return {node.attr for each in functions for node in ast.walk(each) if isinstance(node, ast.Attribute)}


def _file_of(path: str) -> Path | None:
    """Return the file of a plugin's code."""
    if is_plugin_file(path):
        return Path(path.partition(":")[0])
    spec = module_spec(path.rpartition(".")[0])
    return None if spec is None or spec.origin is None else Path(spec.origin).resolve()


def _named(args: Arguments) -> Iterator[tuple[str, str]]:
    seen = set()
    for option in PLUGIN_OPTIONS:
        value = getattr(args, option) or []
        for path in [value] if isinstance(value, str) else value:
            if path not in seen:
                yield flag_of(option), path
            seen.add(path)
    for dataset in args.eval_datasets:
        for option in _OF_EVAL_SETS:
            path = getattr(dataset, option)
            if path and path not in seen:
                yield f"evaluation set {dataset.name}: {option}", path


def _why_missing(path: str) -> str | None:
    if is_plugin_file(path):
        file, _, name = path.partition(":")
        return _without(Path(file), name)
    module, _, name = path.rpartition(".")
    if not module:
        return "write MODULE.NAME or FILE.py:NAME"
    spec = module_spec(module)
    if spec is None:
        return f"no module {module!r}; put its folder on PYTHONPATH, or name a file: ./folder/file.py:{name}"
    return _without(Path(spec.origin), name) if spec.origin and spec.origin.endswith(".py") else None


def module_spec(module: str) -> ModuleSpec | None:
    """Return where Python would find a module, without running its parent packages."""
    package, *inner = module.split(".")
    spec = find_spec(package)
    for part in inner:
        spec = spec and PathFinder.find_spec(part, spec.submodule_search_locations or [])
    return spec


def is_decorated(path: str, decorator: str) -> bool | None:
    """Return whether the function at a plugin path has a decorator in its source; None if not found."""
    node = _function_at(path)
    return None if node is None else decorator in _decorators(node)


def asked_values(args: Arguments) -> tuple[str, ...]:
    """Return the values that the custom loss of ``args`` asks for by name, by its source; empty for any other loss."""
    signature = _signature_of(args.custom_loss_function_path, "from_response_rows")
    try:
        return (loss_values(signature) or ()) if args.loss_type == "custom_loss" and signature else ()
    except PluginError:
        return ()


def wrong_signatures(args: Arguments) -> list[str]:
    """Return one line per loss, generate function or reward model whose source shows that the run cannot call it."""
    problems = []
    checks = {
        "custom_loss_function_path": check_loss_signature,
        "custom_generate_function_path": episode_values,
        "custom_rm_path": None,
    }
    for option, check in checks.items():
        path = getattr(args, option)
        try:
            if check is None:
                _check_reward_source(args, path)
            elif signature := _signature_of(path, "from_response_rows"):
                check(signature)
        except PluginError as error:
            problems.append(f"{flag_of(option)} {path}: {error}")
    return problems


def _check_reward_source(args: Arguments, path: str | None) -> None:
    node = _definition_at(path) if path else None
    if isinstance(node, ast.ClassDef) and (parameter := check_reward_class(node.name, node)) in CHECKPOINT_NAMES:
        check_reward_checkpoint(args, f"{node.name}({parameter})")


def check_reward_checkpoint(args: Arguments, where: str) -> str:
    """Return the checkpoint of the run's reward model, which ``where`` is built from.

    Raises:
        FormError: the run names none but the policy's.
    """
    checkpoint = ConfigView(args).get("prm_model_path")
    if checkpoint is None:
        raise FormError(
            "reward-1", f"{where} needs the checkpoint of a reward model, not the policy's; add --prm-model-path PATH"
        )
    return checkpoint


def _signature_of(path: str | None, *known: str) -> inspect.Signature | None:
    """Return the signature of the function at a plugin path; None if it is not found or a decorator may change it."""
    node = _function_at(path) if path else None
    return None if node is None or set(_decorators(node)) - set(known) else signature_in_source(node)


def _decorators(node: Function) -> list[str]:
    marks = (mark.attr if isinstance(mark, ast.Attribute) else mark for mark in node.decorator_list)
    return [mark.id if isinstance(mark, ast.Name) else str(mark) for mark in marks]


def _function_at(path: str) -> Function | None:
    node = _definition_at(path)
    return node if isinstance(node, Function) else None


def _definition_at(path: str) -> Function | ast.ClassDef | None:
    """Return the function or class at a plugin path in its source; one that the module imports is followed there."""
    source, name = source_of(path)
    try:
        tree = ast.parse(source.read_text()) if source else ast.Module([], [])
    except SyntaxError:
        return None  # `missing_plugins` says so
    for node in tree.body:
        if isinstance(node, Function | ast.ClassDef) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return _definition_at(f"{node.module}.{alias.name}")
    return None


def source_of(path: str) -> tuple[Path | None, str]:
    """Return the source file of a plugin path, None if there is none, and the name in it."""
    if is_plugin_file(path):
        source, _, name = path.partition(":")
    else:
        module, _, name = path.rpartition(".")
        spec = module_spec(module) if module else None
        source = (spec.origin if spec else None) or ""
    file = Path(source)
    return (file if source.endswith(".py") and file.is_file() else None), name


def _without(file: Path, name: str) -> str | None:
    """Return why ``name`` is not in a source file; None if it is, or if parsing cannot tell."""
    try:
        tree = ast.parse(file.read_text())
    except SyntaxError as error:
        return f"{file}, line {error.lineno}: {error.msg}"
    names = defined_names(tree)
    if name in names or {"*", "__getattr__"} & names:
        return None
    near = difflib.get_close_matches(name, names, n=1)
    return f"{file} has no {name!r}" + (f"; did you mean {near[0]!r}?" if near else "")
