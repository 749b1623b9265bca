"""Select the trained parameters: ``--only-train-params-name-list`` and ``--freeze-params-name-list``.

Guarantee: every pattern must match a parameter and at least one parameter must stay trainable, else it is an error.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import nn

from groundwork.exceptions import ConfigError
from slime.args import Arguments
from slime.exceptions import CheckpointError

PATTERNS = ("only_train_params_name_list", "freeze_params_name_list")


def choose_trainable(args: Arguments, model: nn.Module) -> None:
    """Freeze the parameters of ``model`` whose Hugging Face names the patterns (``re.search``) exclude."""
    only = args.only_train_params_name_list
    patterns = only or args.freeze_params_name_list
    if not patterns:
        return
    names = [name for name, _ in model.named_parameters()]
    flag = "--only-train-params-name-list" if only else "--freeze-params-name-list"
    matched = _matches(flag, patterns, names)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_((name in matched) == bool(only))
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(f"{flag} {' '.join(patterns)} leaves nothing to train")


def check_same_parameters(args: Arguments, meta: dict[str, Any]) -> None:
    """Raise CheckpointError if a checkpoint was written with other patterns, because its optimizer does not fit."""
    for name in PATTERNS:
        then, now = meta.get(name), getattr(args, name)
        if (then or None) != (now or None):
            flag = f"--{name.replace('_', '-')}"
            raise CheckpointError(
                f"the checkpoint was written {f'with {flag} ' + ' '.join(then) if then else f'without {flag}'}; "
                "use the same patterns, or start from its weights: --load the folder of --save-hf"
            )


def _matches(flag: str, patterns: Sequence[str], names: Sequence[str]) -> set[str]:
    found: set[str] = set()
    for pattern in patterns:
        try:
            matching = {name for name in names if re.search(pattern, name)}
        except re.error as error:
            raise ConfigError(f"{flag} {pattern}: not a regular expression: {error}") from error
        if not matching:
            raise ConfigError(f"{flag} {pattern} matches no parameter; names look like {names[0]}")
        found |= matching
    return found
