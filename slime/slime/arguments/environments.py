"""Flags that the method folders with environments read from ``args``; the core hands them on.

Guarantee: without a plugin of such a folder on the command line they are refused, because then nothing reads them.
"""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import Group, Option

ENVIRONMENTS = Group(
    "environments (read by the plugins of gui-rl, terminal-rl, swe-rl, toolcall-rl)",
    (
        Option("--prm-step-coef", "weight of the judge's step score in the reward", float, 1.0),
        Option("--prm-sglang-url", "URL of the judge that the plugin asks"),
        Option("--gui-max-steps", "steps of an episode", int),
        Option("--gui-sleep-after-execution", "seconds after an action", float),
        Option("--gui-max-image-history-length", "screenshots that the policy sees", int),
        Option("--gui-max-reward-image-history-length", "screenshots that the judge sees", int),
        Option("--gui-wait-after-reset", "seconds after a reset", float),
        Option("--gui-eval-max-steps", "steps of an evaluation episode", int),
        Option("--gui-eval-sleep-after-execution", "seconds after an action in evaluation", float),
        Option("--gui-eval-wait-after-reset", "seconds after a reset in evaluation", float),
    ),
)
PLUGIN_FLAGS = (
    "rollout_function_path",
    "eval_function_path",
    "custom_generate_function_path",
    "custom_rm_path",
    "data_source_path",
    "custom_reward_post_process_path",
)
_OWN_CODE = ("slime.", "openclaw.")


def check_environments(args: Arguments) -> list[str]:
    """Return a line per environment flag when no plugin of a method folder is named."""
    paths = [getattr(args, name) or "" for name in PLUGIN_FLAGS]
    if any(path and not path.startswith(_OWN_CODE) for path in paths):
        return []
    return [
        f"{option.flag} is read by a method folder's plugin, and none is named; add --custom-generate-function-path"
        for option in ENVIRONMENTS.options
        if option.is_given(args)
    ]
