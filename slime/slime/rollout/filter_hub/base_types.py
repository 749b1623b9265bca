"""What a dynamic sampling filter returns, the one way it is called, and when its verdict drops a group."""

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


def should_drop_dynamic_filter_output(
    output: DynamicFilterOutput, *, remaining_batch_size: int, target_data_size: int
) -> bool:
    """Return whether a finished group is dropped.

    A rejected group with ``keep_when_insufficient`` is needed while dropping it would leave fewer than a batch.

    Args:
        output: the filter's verdict on the group.
        remaining_batch_size: groups asked for and not dropped so far, this one included.
        target_data_size: groups of a batch.
    """
    if output.keep:
        return False
    return not (output.keep_when_insufficient and remaining_batch_size <= target_data_size)
