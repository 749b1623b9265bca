"""The steps of tool training, under the module's name in guides; they are in `toolcall_training`."""

from toolcall_training import (
    collect_toolcall_trajectory,
    compute_toolcall_loss,
    format_tool_descriptions,
    train_toolcall_agent,
)

__all__ = [
    "collect_toolcall_trajectory",
    "compute_toolcall_loss",
    "format_tool_descriptions",
    "train_toolcall_agent",
]
