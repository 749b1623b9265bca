"""What a dynamic sampling filter returns, and the one way it is called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from slime.args import Arguments
from slime.exceptions import PluginError


@dataclass(frozen=True)
class DynamicFilterOutput:
    """The verdict on a group.

    Attributes:
        keep: whether it is trained on.
        reason: why not; counted as ``rollout/dynamic_filter/drop_<reason>``.
        keep_when_insufficient: it may fill up a batch for which the prompts that were asked for gave too few.
    """

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


def call_dynamic_filter(function: Callable[..., Any] | None, args: Arguments, group: list[Any]) -> DynamicFilterOutput:
    """Return the verdict of ``function`` on ``group``; a bare bool will do, and without a function everything is kept.

    Raises:
        PluginError: when it returned something else.
    """
    if function is None:
        return DynamicFilterOutput(keep=True)
    verdict = function(args, group)
    if isinstance(verdict, DynamicFilterOutput):
        return verdict
    if not hasattr(verdict, "keep"):
        try:
            return DynamicFilterOutput(keep=bool(verdict))  # NumPy's bool too
        except (TypeError, ValueError) as error:
            raise PluginError(f"the dynamic sampling filter returned {type(verdict).__name__}, not a bool") from error
    spare = bool(getattr(verdict, "keep_when_insufficient", False))
    return DynamicFilterOutput(bool(verdict.keep), getattr(verdict, "reason", None), spare)
