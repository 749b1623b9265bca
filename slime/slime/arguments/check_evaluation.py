"""Evaluation flags of a run that evaluates nothing.

Four of them are accepted there, because launch scripts of the contract give them whether or not they evaluate: they say so in
``--help``. Every other one is refused.
"""

from __future__ import annotations

from slime.args import Arguments
from slime.arguments.option import flag_of

_NEED_EVALUATION = (
    *("eval_input_key", "eval_label_key", "eval_tool_key", "eval_reward_key", "eval_top_k", "eval_min_new_tokens"),
    *("eval_max_context_len", "eval_max_prompt_len", "custom_eval_rollout_log_function_path"),
)
_EVALUATES = ("eval_interval", "eval_config", "eval_prompt_data", "eval_function_path")


def check_evaluation(args: Arguments) -> list[str]:
    """Return the problems, one line each; ``args`` as they were given, before any derivation."""
    if any(getattr(args, name) for name in _EVALUATES):
        return []
    given = [flag_of(name) for name in _NEED_EVALUATION if getattr(args, name) is not None]
    if not given:
        return []
    return [f"{', '.join(given)} has no effect without evaluation: add --eval-interval N --eval-prompt-data NAME PATH"]
