"""How a flag is declared, one `Option` per flag, grouped by topic, and how ``--help`` shows them.

Guarantee: each flag is declared in exactly one place. Nothing here imports torch, Ray or SGLang, so ``--help`` and
``--dry-run`` answer immediately on any machine.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from slime.args import Arguments

NOT_INSTALLED = "is not installed on this machine"
"""Of a problem that another machine may not have."""


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


ALL_FLAG = "--help-all"
COMMON = (
    *("--config", "--dry-run", "--hf-checkpoint", "--run-dir", "--save", "--save-interval", "--load", "--resume"),
    *("--rollout-function-path", "--prompt-data", "--input-key", "--label-key", "--apply-chat-template"),
    *("--num-rollout", "--rollout-batch-size", "--n-samples-per-prompt", "--global-batch-size"),
    *("--rollout-max-response-len", "--rollout-temperature", "--rm-type", "--custom-rm-path"),
    *("--eval-prompt-data", "--eval-interval", "--advantage-estimator", "--loss-type", "--use-kl-loss", "--lr"),
    *("--use-lora", "--train-backend", "--device", "--num-gpus", "--actor-num-gpus-per-node", "--rollout-num-gpus"),
    *("--rollout-num-gpus-per-engine", "--colocate", "--max-tokens-per-gpu", "--use-wandb"),
)


class ShowAll(argparse.Action):
    """The flag ``--help-all``."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print every flag and exit."""
        print(whole_help(parser, getattr(parser, "topics", None)))
        parser.exit()


def add_help_all(parser: argparse.ArgumentParser) -> None:
    """Declare ``--help-all``."""
    parser.add_argument(
        ALL_FLAG, action=ShowAll, nargs=0, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )


def short_help(parser: argparse.ArgumentParser, common: Collection[str], topics: Sequence[str] | None) -> str:
    """Return the flags in ``common``, and the titles of the topics with their number of flags."""
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, [], [])
    formatter.add_text(parser.description)
    formatter.start_section("common flags")
    formatter.add_arguments(
        [action for action in parser._actions if not {"--help", *common}.isdisjoint(action.option_strings)]
    )
    formatter.end_section()
    rows = [f"  {len(shown):>3}  {group.title}" for group in _groups(parser, topics) if (shown := _shown(group))]
    return formatter.format_help() + "\n".join([f"\n{ALL_FLAG} lists every flag, by topic:", *rows, ""])


def whole_help(parser: argparse.ArgumentParser, topics: Sequence[str] | None) -> str:
    """Return every flag of ``topics``, all of them for None."""
    formatter = parser._get_formatter()
    formatter.add_usage(parser.usage, [], [])
    formatter.add_text(parser.description)
    for group in _groups(parser, topics):
        formatter.start_section(group.title)
        formatter.add_arguments(_shown(group))
        formatter.end_section()
    return formatter.format_help()


def _shown(group: argparse._ArgumentGroup) -> list[argparse.Action]:
    return [action for action in group._group_actions if action.help is not argparse.SUPPRESS]


def _groups(parser: argparse.ArgumentParser, topics: Sequence[str] | None) -> list[argparse._ArgumentGroup]:
    own = {parser._positionals.title, parser._optionals.title}
    return [group for group in parser._action_groups if topics is None or group.title in own or group.title in topics]
