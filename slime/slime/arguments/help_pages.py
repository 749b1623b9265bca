"""``--help`` of the training programs: the common flags on one screen. ``--help-all`` lists every flag by topic.

A program that trains nothing leaves out the topics of training.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence
from typing import Any

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
        [each for each in parser._actions if not {"--help", *common}.isdisjoint(each.option_strings)]
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
