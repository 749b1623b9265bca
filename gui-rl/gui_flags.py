"""The flags ``--gui-*`` of runs on screen tasks, and what they mean for an episode.

The trainer's parser knows them where ``--custom-generate-function-path`` names a plugin of this folder. A variable of
`agentrl.rollout.settings` that is set wins over a default here, and a flag wins over both. Guarantee: a value that would
change nothing is refused.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from typing import Any

from agentrl.rollout.custom_config import CustomConfig, episode_settings
from agentrl.rollout.settings import Settings
from agentrl.tasks.gui.settings import GuiSettings
from groundwork.exceptions import ConfigError

URL_VARIABLE = "GUI_ENV_SERVER_URL"
DEFAULT_STEPS, DEFAULT_PICTURES, DEFAULT_MALFORMED = 15, 3, 3
EVAL_REPLY_TOKENS, EVAL_TEMPERATURE = 1024, 0.0
"""Of an evaluation: most tokens of a reply, and how it is sampled."""
FLAGS: Mapping[str, tuple[type[int | float], str]] = {
    "--gui-max-steps": (int, "maximum steps per episode"),
    "--gui-sleep-after-execution": (float, "seconds to wait after an action"),
    "--gui-max-image-history-length": (int, "screenshots shown to the policy"),
    "--gui-max-reward-image-history-length": (int, "screenshots shown to the judge"),
    "--gui-wait-after-reset": (float, "seconds to wait after a reset"),
    "--gui-eval-max-steps": (int, "maximum steps per evaluation episode"),
    "--gui-eval-sleep-after-execution": (float, "seconds to wait after an action in evaluation"),
    "--gui-eval-wait-after-reset": (float, "seconds to wait after a reset in evaluation"),
}


def add_custom_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the flags on the trainer's parser."""
    group = parser.add_argument_group("screen tasks (gui-rl)")
    for flag, (kind, text) in FLAGS.items():
        group.add_argument(flag, type=kind, help=text)


class GuiConfig(CustomConfig):
    """Attributes of the run's arguments that screen episodes read: flags, and names of older custom configs.

    There is one agent and one judge, for which two names stand.
    """

    gui_max_steps: int | None = None
    gui_sleep_after_execution: float | None = None
    gui_max_image_history_length: int | None = None
    gui_max_reward_image_history_length: int | None = None
    gui_wait_after_reset: float | None = None
    gui_eval_max_steps: int | None = None
    gui_eval_sleep_after_execution: float | None = None
    gui_eval_wait_after_reset: float | None = None
    gui_agent_class_path: str | None = None
    gui_reward_agent_class_path: str | None = None
    prm_max_concurrency: int | None = None

    def settings(self, evaluation: bool, environment: Mapping[str, str] = os.environ) -> Settings:
        """Return the settings of an episode.

        Raises:
            ConfigError: a flag or attribute is unusable.
        """
        self.check(environment)
        steps = self.gui_eval_max_steps if evaluation and self.gui_eval_max_steps else self.gui_max_steps
        judged = self.gui_max_reward_image_history_length
        usual: dict[str, Any] = {
            "max_turns": DEFAULT_STEPS,
            "keep_pictures": DEFAULT_PICTURES,
            "judge_pictures": 2,
            "max_malformed": DEFAULT_MALFORMED,
            "pool_url": environment.get(URL_VARIABLE) or None,
        }
        given = {
            "max_turns": steps,
            "keep_pictures": self.gui_max_image_history_length,
            "judge_pictures": None if judged is None else judged + 1,
        }
        decided: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if not GuiSettings.from_env(environment).pictures:
            decided["judge_pictures"] = 0
        return episode_settings(usual, decided, environment)

    def check(self, environment: Mapping[str, str] = os.environ) -> None:
        """Refuse values that would change nothing.

        Raises:
            ConfigError: says what to do.
        """
        for name, only in (
            ("gui_agent_class_path", "agents.qwen3vl_agent.Qwen3VLAgent"),
            ("gui_reward_agent_class_path", "agents.qwen3vl_reward_agent.Qwen3VLRewardAgent"),
        ):
            if (given := getattr(self, name)) not in (None, only):
                raise ConfigError(f"--custom-config-path: {name} {given!r} is unknown; remove it, or write {only}")
        if (slots := self.prm_max_concurrency) is not None:
            raise ConfigError(f"--custom-config-path: prm_max_concurrency {slots} has no effect; remove it")
        pool = GuiSettings.from_env(environment)
        for name, variable, waits in (
            ("sleep_after_execution", "GUI_SLEEP_AFTER_EXECUTION", pool.sleep_seconds),
            ("wait_after_reset", "GUI_WAIT_AFTER_RESET", pool.reset_wait_seconds),
        ):
            for attribute in (f"gui_{name}", f"gui_eval_{name}"):
                if (seconds := getattr(self, attribute)) is not None and seconds != waits:
                    raise ConfigError(
                        f"--{attribute.replace('_', '-')} {seconds:g}: the pool waits, {waits:g} s here; set "
                        f"{variable}={seconds:g} for pool and run instead, which holds for training and evaluation alike"
                    )
