"""Check that the plugins of a command line exist, before anything starts.

Guarantee: runs no code of a plugin or its packages. The module is located where Python would find it, and parsed. Names
that only running code could reveal (names set at run time, compiled modules) count as present.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec
from pathlib import Path

from slime.args import Arguments
from slime.arguments.option import flag_of
from slime.arguments.plugin_paths import defined_names, is_plugin_file

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
    found = _spec(module)
    if found is None:
        return f"no module {module!r}; put its folder on PYTHONPATH, or name a file: ./folder/file.py:{name}"
    return _without(Path(found.origin), name) if found.origin and found.origin.endswith(".py") else None


def _spec(module: str) -> ModuleSpec | None:
    """Return where Python would find a module, without running its parent packages."""
    package, *inner = module.split(".")
    found = find_spec(package)
    for part in inner:
        found = found and PathFinder.find_spec(part, found.submodule_search_locations or [])
    return found


def is_decorated(path: str, decorator: str) -> bool | None:
    """Return whether the function at a plugin path has a decorator in its source; None if not found.

    A name that the module imports from another module is followed there.
    """
    if is_plugin_file(path):
        source, _, name = path.partition(":")
    else:
        module, _, name = path.rpartition(".")
        found = _spec(module) if module else None
        source = found.origin if found else None
    if not source or not source.endswith(".py") or not Path(source).is_file():
        return None
    for node in ast.parse(Path(source).read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            marks = (mark.attr if isinstance(mark, ast.Attribute) else mark for mark in node.decorator_list)
            return any((mark.id if isinstance(mark, ast.Name) else mark) == decorator for mark in marks)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return is_decorated(f"{node.module}.{alias.name}", decorator)
    return None


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
