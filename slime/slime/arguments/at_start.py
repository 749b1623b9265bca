"""Check what the machine must provide besides valid flags: GPUs, prompts, plugins, an unused save folder.

Guarantee: reads only names, never contents, and reports missing prompts and plugins before any process starts.
"""

from __future__ import annotations

from pathlib import Path

from groundwork.command_line import nearest_path
from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.arguments.checkpoint import LATEST, taken_folder
from slime.arguments.critic import check_critic
from slime.arguments.devices import missing_devices
from slime.arguments.plugins import missing_plugins

_CORE_SOURCES = "slime.rollout.data_source."


def missing_at_start(args: Arguments) -> list[str]:
    """Return one line per missing resource."""
    return [*missing_devices(args), *no_prompts(args), *missing_prompt_file(args), *missing_plugins(args)]


def check_still_free(args: Arguments) -> None:
    """Raise ConfigError if another run wrote to the save folder while this one waited for GPUs."""
    critic = check_critic(args, LATEST) if args.use_critic else []
    if taken := [*taken_folder(args), *critic]:
        raise ConfigError("; ".join(taken))


def no_prompts(args: Arguments) -> list[str]:
    """Return a line if the core's data source has no prompt file."""
    if args.prompt_data or not _reads_prompts(args):
        return []
    return ["no prompts: add --prompt-data FILE, or --disable-rollout-global-dataset"]


def missing_prompt_file(args: Arguments) -> list[str]:
    """Return a line if the core's prompt file does not exist; a trailing ``@[a:b]`` is a slice."""
    if not args.prompt_data or not _reads_prompts(args) or Path(args.prompt_data.partition("@[")[0]).is_file():
        return []
    return [f"--prompt-data {args.prompt_data}: no such file{nearest_path(args.prompt_data)}"]


def _reads_prompts(args: Arguments) -> bool:
    return args.rollout_global_dataset and args.data_source_path.startswith(_CORE_SOURCES)
