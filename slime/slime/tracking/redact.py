"""Redact secrets from the arguments that a tracker sees."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from slime.args import Arguments

_SECRET = re.compile(r"(^|_)(api_?keys?|keys?|token|secrets?|password|passwd|credentials?)($|_)", re.IGNORECASE)
_HARMLESS = frozenset(
    {
        "eval_input_key",
        "eval_label_key",
        "eval_reward_key",
        "eval_tool_key",
        "input_key",
        "label_key",
        "metadata_key",
        "multimodal_keys",
        "reward_key",
        "tool_key",
        "rollout_stop_token_ids",
        "rollout_skip_special_tokens",
    }
)


def is_secret(name: str) -> bool:
    """Return whether an argument of this name may hold a secret."""
    if name in _HARMLESS:
        return False
    if name.startswith("sglang_"):
        return re.search(r"api_key|password|token$", name) is not None
    return _SECRET.search(name) is not None


def redacted(args: Arguments) -> dict[str, Any]:
    """Return the arguments as JSON-ready values; a possible secret is replaced by ``set`` or ``unset``."""
    shown: dict[str, Any] = {}
    for name, value in sorted(vars(args).items()):
        if is_secret(name):
            shown[name] = "set" if value else "unset"
        elif value is None or isinstance(value, str | int | float | list | tuple | dict):
            shown[name] = value
        else:
            shown[name] = repr(value)
    return {name: value for name, value in shown.items() if not (name.startswith("sglang_") and value is None)}


def without_secrets(words: Sequence[str]) -> list[str]:
    """Return a command line's words with keys and passwords replaced by ``***``."""
    shown: list[str] = []
    hide = False
    for word in words:
        flag, equals, _ = word.partition("=")
        secret = flag.startswith("--") and is_secret(flag[2:].replace("-", "_"))
        shown.append(f"{flag}=***" if secret and equals else "***" if hide and not word.startswith("--") else word)
        hide = secret and not equals
    return shown
