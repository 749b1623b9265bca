"""Flags that plugins of the environment method folders read from ``args``; the core only passes them on.

Guarantee: refused unless the command line names such a plugin, because nothing else reads them.
"""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import Group, Option

ENVIRONMENTS = Group(
    "environments (read by the plugins of agent folders)",
    (
        Option("--prm-step-coef", "weight of the judge's step score in the reward", float, 1.0),
        Option("--prm-sglang-url", "URL of a running judge that agent loops ask instead of engines of the run"),
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
    """Return one line per environment flag if no plugin of a method folder is named."""
    paths = [getattr(args, name) or "" for name in PLUGIN_FLAGS]
    if any(path and not path.startswith(_OWN_CODE) for path in paths):
        return []
    return [
        f"{option.flag} is read only by a method folder's plugin, and none is named; add --custom-generate-function-path"
        for option in ENVIRONMENTS.options
        if option.is_given(args)
    ]
