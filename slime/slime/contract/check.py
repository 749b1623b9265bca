"""Check one plugin, and find all plugins that a command line names."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from slime.arguments.parser import build_parser, parser_for
from slime.arguments.plugin_forms import FormError
from slime.arguments.plugins import is_plugin_file, name_of_file
from slime.arguments.yaml_files import with_config_file
from slime.contract import rollout_side
from slime.contract.clauses import KINDS, ContractViolation, all_violations, check_call, require, running
from slime.contract.surroundings import Surroundings, surroundings
from slime.exceptions import PluginError
from slime.rollout.generation import load_generate_function
from slime.rollout.reward_plugin import load_reward_function
from slime.utils.misc import load_function

Checker = Callable[[Callable[..., Any], Surroundings], None]


def check_arguments(plugin: Callable[..., Any], around: Surroundings) -> None:
    """Check a function that declares a method's own flags."""
    check_call(plugin, "arguments-1", 1)
    parser = build_parser()
    before = len(parser._actions)
    with running("arguments-2"):
        plugin(parser)
    for action in parser._actions[before:]:
        require(not action.required, "arguments-3", f"{action.option_strings[0]} has no default")


def check_model_provider(plugin: Callable[..., Any], around: Surroundings) -> None:
    """Check the signature of a model provider."""
    check_call(plugin, "model_provider-1", 0, ("pre_process", "post_process"))


def check_megatron_init(plugin: Callable[..., Any], around: Surroundings) -> None:
    """Check the signature of the hook after Megatron's start."""
    check_call(plugin, "megatron_init-1", 1)


def check_before_log_prob(plugin: Callable[..., Any], around: Surroundings) -> None:
    """Check the signature of the hook before a forward-only pass."""
    check_call(plugin, "before_log_prob-1", 3)


def check_before_train_step(plugin: Callable[..., Any], around: Surroundings) -> None:
    """Check the signature of the hook before an optimizer step."""
    check_call(plugin, "before_train_step-1", 6)


def on_tensors(name: str) -> Checker:
    """Return a checker of `slime.contract.training_side`, which is imported with its first call: it imports torch."""

    def checker(plugin: Callable[..., Any], around: Surroundings) -> None:
        from slime.contract import training_side

        getattr(training_side, name)(plugin, around)

    return checker


CHECKERS: dict[str, Checker] = {
    "rollout": rollout_side.check_rollout,
    "eval": rollout_side.check_eval,
    "generate": rollout_side.check_generate,
    "reward": rollout_side.check_reward,
    "dynamic_filter": rollout_side.check_dynamic_filter,
    "buffer_filter": rollout_side.check_buffer_filter,
    "sample_filter": rollout_side.check_sample_filter,
    "all_samples": rollout_side.check_all_samples,
    "data_source": rollout_side.check_data_source,
    "sample_hook": rollout_side.check_sample_hook,
    "rollout_log": rollout_side.check_rollout_log,
    "eval_log": rollout_side.check_eval_log,
    "reward_post_process": rollout_side.check_reward_post_process,
    "convert": rollout_side.check_convert,
    "data_postprocess": rollout_side.check_data_postprocess,
    "loss": on_tensors("check_loss"),
    "advantage": on_tensors("check_advantage"),
    "tis": on_tensors("check_tis"),
    "pg_loss_reducer": on_tensors("check_pg_loss_reducer"),
    "arguments": check_arguments,
    "before_push": rollout_side.check_before_push,
    "model_provider": check_model_provider,
    "megatron_init": check_megatron_init,
    "before_log_prob": check_before_log_prob,
    "before_train_step": check_before_train_step,
}


def check(kind: str, path: str, words: Sequence[str] = ()) -> None:
    """Check the plugin ``path`` against the clauses of ``kind``.

    Args:
        kind: a key of :data:`slime.contract.clauses.KINDS`.
        path: ``module.attr`` or ``./file.py:name``, as on the command line.
        words: further flags of the trainer, which set the ``args`` that the plugin reads.

    Raises:
        ContractViolation: the plugin breaks clauses; the error names them all.
        PluginError: there is no such plugin.
    """
    option = KINDS[kind].option
    path = name_of_file(option, path) if is_plugin_file(path) else path
    with surroundings(words) as around:
        if hasattr(around.args, option):
            setattr(around.args, option, path)
        with all_violations():
            CHECKERS[kind](_loaded(kind, path, around), around)


def _loaded(kind: str, path: str, around: Surroundings) -> Callable[..., Any]:
    """Return the plugin as the run calls it."""
    plugin = _imported(path)
    try:
        if kind == "reward":
            return load_reward_function(path, around.args)
        if kind == "loss":
            return load_function("slime.algorithms.losses.named_values.load_custom_loss")(path)  # imports torch
        return load_generate_function(path) if kind == "generate" else plugin
    except FormError as error:
        raise ContractViolation(error.clause, error.detail) from error


def _imported(path: str) -> Any:
    """Return what a plugin path names; an exception while its module is imported is a PluginError."""
    try:
        return load_function(path)
    except PluginError:
        raise
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        line = "" if isinstance(error, SyntaxError) else f" ({where.filename}, line {where.lineno})"
        raise PluginError(f"{path} cannot be imported: {type(error).__name__}: {error}{line}") from error


def checked_by(kind: str, path: str) -> str | None:
    """Return the command that checks a plugin which no stand-in can feed, such as a live source; None for any other.

    The plugin names it in its attribute ``checked_by``.

    Raises:
        PluginError: there is no such plugin.
    """
    plugin = _imported(name_of_file(KINDS[kind].option, path) if is_plugin_file(path) else path)
    return getattr(plugin, "checked_by", None)


def named_plugins(words: Sequence[str]) -> list[tuple[str, str]]:
    """Return ``(kind, path)`` of every plugin that the trainer's flags ``words`` name.

    A ``--config`` file among them counts too.

    Raises:
        ConfigError: the file cannot be read.
    """
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, argument_default=argparse.SUPPRESS)
    for kind in KINDS.values():
        parser.add_argument(kind.flag, nargs="+", action="extend")
    given = vars(parser.parse_known_args(with_config_file(parser_for(words), words))[0])
    return [(name, path) for name, kind in KINDS.items() for path in given.get(kind.option, [])]
