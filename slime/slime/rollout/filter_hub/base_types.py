"""What a dynamic sampling filter returns, how it is called, and when its verdict drops a group."""

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
        keep: whether the group is trained on.
        reason: why it is not kept; counted as ``rollout/dynamic_filter/drop_<reason>``.
        keep_when_insufficient: whether it may fill a batch if the requested prompts yield too few groups.
    """

    keep: bool
    reason: str | None = None
    keep_when_insufficient: bool = False


def call_dynamic_filter(function: Callable[..., Any] | None, args: Arguments, group: list[Any]) -> DynamicFilterOutput:
    """Return the verdict of ``function``, possibly a bare bool, on ``group``; keep everything without a function.

    Raises:
        PluginError: the filter returned something else.
    """
    if function is None:
        return DynamicFilterOutput(keep=True)
    verdict = function(args, group)
    if isinstance(verdict, DynamicFilterOutput):
        return verdict
    if not hasattr(verdict, "keep"):
        try:
            return DynamicFilterOutput(keep=bool(verdict))  # also accepts NumPy's bool
        except (TypeError, ValueError) as error:
            raise PluginError(
                f"the dynamic sampling filter returned {type(verdict).__name__}, not a bool; return True or False"
            ) from error
    spare = bool(getattr(verdict, "keep_when_insufficient", False))
    return DynamicFilterOutput(bool(verdict.keep), getattr(verdict, "reason", None), spare)


def should_drop_dynamic_filter_output(
    output: DynamicFilterOutput, *, remaining_batch_size: int, target_data_size: int
) -> bool:
    """Return whether a finished group is dropped.

    A rejected group with ``keep_when_insufficient`` stays if dropping it would leave less than a batch.

    Args:
        output: the filter's verdict on the group.
        remaining_batch_size: requested groups not dropped so far, this one included.
        target_data_size: groups per batch.
    """
    if output.keep:
        return False
    return not (output.keep_when_insufficient and remaining_batch_size <= target_data_size)
