"""The command line of the training core: one parser built from all flag groups.

Guarantees: an unknown flag is an error that names the nearest known one. ``--help`` needs neither torch nor Ray. What
`parse_args` returns has passed `slime.arguments.validate`.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from groundwork.command_line import CommandLine, as_list
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.algorithm import ALGORITHM, CRITIC, FUSES, GATE, algorithm_warnings
from slime.arguments.backend import MEGATRON
from slime.arguments.checkpoint import CHECKPOINT
from slime.arguments.cluster import CLUSTER, COLOCATE
from slime.arguments.dry_run import show_plan, with_command
from slime.arguments.fireworks import FIREWORKS
from slime.arguments.memory_budget import memory_problems
from slime.arguments.model_shape import MODEL_SHAPE
from slime.arguments.option import COMMON, add_help_all, short_help
from slime.arguments.plugins import AddArguments, method_arguments, resolve_plugin_files
from slime.arguments.refused import (
    add_fixed_arguments,
    add_refused_arguments,
    add_unused_arguments,
    refusals,
    unused_flags,
)
from slime.arguments.rollout import DATA, ENVIRONMENTS, EVALUATION, JUDGE, ROLLOUT
from slime.arguments.sglang_flags import add_sglang_arguments
from slime.arguments.tinker import TINKER
from slime.arguments.torchrun import refuse_many_starts
from slime.arguments.tracking import DEBUG, MEMORY_HISTORY, TRACKING
from slime.arguments.trainer import LORA, OPTIMIZER, TRAINER, WEIGHT_SYNC
from slime.arguments.validate import validate
from slime.arguments.vllm import ENGINE
from slime.arguments.yaml_files import ARGUMENTS_FLAG, apply_custom_config, with_config_file

GROUPS = (
    CLUSTER,
    COLOCATE,
    ENGINE,
    CHECKPOINT,
    ROLLOUT,
    DATA,
    EVALUATION,
    ALGORITHM,
    CRITIC,
    JUDGE,
    TRAINER,
    WEIGHT_SYNC,
    LORA,
    OPTIMIZER,
    FUSES,
    GATE,
    MODEL_SHAPE,
    MEGATRON,
    TINKER,
    FIREWORKS,
    TRACKING,
    DEBUG,
    MEMORY_HISTORY,
    ENVIRONMENTS,
)


OF_TRAINING = (ALGORITHM, OPTIMIZER, LORA)
"""Topics whose flags have to reach the training ranks or the rollout manager, if they are given."""
ON_OCCASION = frozenset(
    {"reward_key", "opd_clip", "opd_kl_coef", "opd_teacher", "use_checkpoint_lr_scheduler", "override_lr_scheduler"}
)
"""Attributes of those topics that are read for rewards that are dicts, for samples with a teacher, or when a
checkpoint is restored."""
ALIASES = {alias: option.flag for group in GROUPS for option in group.options for alias in option.aliases}
"""The flag of each other spelling."""


class Parser(CommandLine):
    """Argument parser that returns typed `Arguments`.

    Attributes:
        common: the flags that ``--help`` shows.
        topics: titles of the groups of flags that mean something in the program; None stands for all.
        of_methods: the attributes of the flags that methods declare, with their defaults.
    """

    common: Collection[str] = COMMON
    topics: Sequence[str] | None = None
    of_methods: Mapping[str, Any] = {}

    def parse_known_args(
        self, args: Iterable[str] | None = None, namespace: None = None
    ) -> tuple[Arguments, list[str]]:
        values, unknown = super().parse_known_args(args, namespace)
        return Arguments.of(vars(values)), unknown

    def format_help(self) -> str:
        return short_help(self, self.common, self.topics)


def build_parser(*add_custom_arguments: AddArguments) -> Parser:
    """Return the parser with every group, the engine flags, and the flags of plugins."""
    parser = Parser(
        prog=Path(sys.argv[0]).name or "train_async.py",
        usage="%(prog)s FLAGS",
        description="Train a policy on the samples that its rollout function collects.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=40, width=120),
    )
    add_help_all(parser)
    parser.add_argument("--config", help="YAML file of flags (same names, - or _); the command line wins over it")
    parser.add_argument("--custom-config-path", help="YAML file; sets every key on the arguments, including new ones")
    parser.add_argument(ARGUMENTS_FLAG, help="function add_custom_arguments(parser) that declares flags of a method")
    for group in GROUPS:
        group.add_to(parser)
    add_sglang_arguments(parser)
    add_fixed_arguments(parser)
    add_refused_arguments(parser)
    known = set(parser._actions)
    for add in add_custom_arguments:
        add(parser)
    parser.of_methods = {action.dest: action.default for action in parser._actions if action not in known}
    add_unused_arguments(parser)  # last, because a plugin may give them a meaning
    return parser


def parser_for(words: Sequence[str], add_custom_arguments: AddArguments | None = None) -> Parser:
    """Return the parser for a command line, including the flags of the method it names.

    Raises:
        SystemExit: code 2; the method's flags cannot be declared.
    """
    try:
        further = [add for add in (add_custom_arguments, method_arguments(words)) if add is not None]
        return build_parser(*further)
    except ConfigError as error:
        build_parser().error(str(error))


def read_arguments(parser: Parser, argv: Sequence[str]) -> tuple[Arguments, list[str]]:
    """Return the parsed and derived arguments, and one line per problem.

    Raises:
        SystemExit: the command line does not parse.
    """
    try:
        words = with_config_file(parser, argv)
        args, unknown = parser.parse_known_args(words)
        if unknown:
            parser.unknown(unknown)
        args.training_options_given = (
            *(
                option.attribute
                for group in OF_TRAINING
                for option in group.options
                if option.is_given(args) and option.attribute not in ON_OCCASION
            ),
            *(name for name, default in parser.of_methods.items() if vars(args)[name] != default),
        )
        problems = [*refusals(args), *apply_custom_config(parser, args)]
        args.unused_flags = unused_flags(args)
        return args, [*problems, *resolve_plugin_files(args), *validate(args, words)]
    except ConfigError as error:
        parser.error(str(error))


def parse_args(
    argv: Sequence[str] | None = None,
    add_custom_arguments: AddArguments | None = None,
    check: Callable[[Arguments], list[str]] | None = None,
) -> Arguments:
    """Return the parsed, derived and validated command line.

    Args:
        argv: words after the program; default: ``sys.argv[1:]``.
        add_custom_arguments: declares a plugin's flags.
        check: returns the calling program's own problems with these arguments, one line each.

    Returns:
        Flat arguments under the contract's names.

    Raises:
        SystemExit: code 2 with every problem and what to change; code 0 after a ``--dry-run`` without problems.
    """
    argv = sys.argv[1:] if argv is None else argv
    refuse_many_starts(os.environ)
    parser = parser_for(argv, add_custom_arguments)
    args, problems = read_arguments(parser, argv)
    problems += check(args) if check is not None else []
    if args.dry_run:
        problems = show_plan(args, argv, problems)
    elif not problems:
        problems, budget = memory_problems(args)
        vars(args).update(budget.derived)
        for warning in (*algorithm_warnings(args), *budget.warnings):
            print(f"warning: {warning}", file=sys.stderr)
    if problems:
        problems = [with_command(problem) for problem in problems]
        parser.error(as_list("the arguments cannot work together", problems))
    if args.dry_run:
        parser.exit(0)
    return args
