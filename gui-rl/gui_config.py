"""How flags and ``--custom-config-path`` of a run reach its episodes.

The flags are ``--gui-*`` of the core; the attributes are those of a custom config. A variable of `agentrl.rollout.settings`
that is set wins over a default here, and a flag wins over both. Guarantee: a value that would change nothing is refused.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from agentrl.rollout.settings import Settings
from agentrl.tasks.gui.settings import GuiSettings
from groundwork.exceptions import ConfigError
from slime.args import Arguments

URL_VARIABLE = "GUI_ENV_SERVER_URL"
AGENT = "agents.qwen3vl_agent.Qwen3VLAgent"
REWARD_AGENT = "agents.qwen3vl_reward_agent.Qwen3VLRewardAgent"
ONE_OF_A_KIND = {"gui_agent_class_path": AGENT, "gui_reward_agent_class_path": REWARD_AGENT}
"""Attributes of older custom configs: there is one agent and one judge, and these names stand for them."""
DEFAULT_STEPS, DEFAULT_PICTURES, DEFAULT_MALFORMED = 15, 3, 3
EVAL_REPLY_TOKENS, EVAL_TEMPERATURE = 1024, 0.0
"""Of an evaluation: most tokens of a reply, and how it is sampled."""


def settings_of(args: Arguments, evaluation: bool, environment: Mapping[str, str] = os.environ) -> Settings:
    """Return the settings of an episode.

    Raises:
        ConfigError: a flag or attribute is unusable.
    """
    check(args, environment)
    read = Settings.from_env(environment)
    steps = args.gui_eval_max_steps if evaluation and args.gui_eval_max_steps else args.gui_max_steps
    judged = args.gui_max_reward_image_history_length
    own: dict[str, tuple[str, Any, Any]] = {
        "AGENTRL_MAX_TURNS": ("max_turns", steps, DEFAULT_STEPS),
        "AGENTRL_KEEP_PICTURES": ("keep_pictures", args.gui_max_image_history_length, DEFAULT_PICTURES),
        "AGENTRL_JUDGE_PICTURES": ("judge_pictures", None if judged is None else judged + 1, 2),
        "AGENTRL_MAX_MALFORMED": ("max_malformed", None, DEFAULT_MALFORMED),
        "AGENTRL_POOL_URL": ("pool_url", None, environment.get(URL_VARIABLE) or None),
    }
    changes = {
        field: default if told is None else told
        for variable, (field, told, default) in own.items()
        if told is not None or not environment.get(variable)
    }
    if not GuiSettings.from_env(environment).pictures:
        changes["judge_pictures"] = 0
    return replace(read, **changes)


def check(args: Arguments, environment: Mapping[str, str] = os.environ) -> None:
    """Refuse values that would change nothing.

    Raises:
        ConfigError: says what to do.
    """
    told = vars(args)
    for name, only in ONE_OF_A_KIND.items():
        if (given := told.get(name)) not in (None, only):
            raise ConfigError(f"--custom-config-path: {name} {given!r} is unknown; remove it, or write {only}")
    if (slots := told.get("prm_max_concurrency")) is not None:
        raise ConfigError(f"--custom-config-path: prm_max_concurrency {slots} has no effect; remove it")
    pool = GuiSettings.from_env(environment)
    for flag, evaluated, variable, waits in (
        (
            "gui_sleep_after_execution",
            "gui_eval_sleep_after_execution",
            "GUI_SLEEP_AFTER_EXECUTION",
            pool.sleep_seconds,
        ),
        ("gui_wait_after_reset", "gui_eval_wait_after_reset", "GUI_WAIT_AFTER_RESET", pool.reset_wait_seconds),
    ):
        for name in (flag, evaluated):
            if (seconds := told[name]) is not None and seconds != waits:
                raise ConfigError(
                    f"--{name.replace('_', '-')} {seconds:g}: the pool waits, {waits:g} s here; set {variable}={seconds:g} for pool and "
                    "run instead, which holds for training and evaluation alike"
                )
