"""The variables of the environment of tool tasks; the pool's process reads them.

Guarantee: an invalid value is a `ConfigError` that names the variable and says what to type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from groundwork.exceptions import ConfigError
from groundwork.variables import EnvironmentConfig, variable


@dataclass(frozen=True, kw_only=True)
class ToolSettings(EnvironmentConfig):
    """Values of the variables; see their help."""

    tools_config: str | None = variable(
        "TOOLS_CONFIG", None, "JSON file with the tools that tasks may have; default: all built-in tools"
    )
    data: str | None = variable("TOOLCALL_DATA", None, "JSON lines of a data set that the pool offers as tasks")
    actions: Literal["tool_calls", "retool_text"] = variable(
        "TOOLCALL_ACTIONS",
        "tool_calls",
        "how the model calls tools: in its own format, or in text with <tool_call>, <code> and <interpreter>",
    )
    max_calls: int = variable("TOOLCALL_MAX_CALLS", 16, "calls after which an episode is truncated", minimum=1)
    allowed_urls: str = variable(
        "TOOLCALL_ALLOWED_URLS", "", "beginnings of the URLs that tools may reach, separated by spaces"
    )

    def require_tool_calls(self) -> None:
        """Refuse calls in text where messages carry the calls.

        Raises:
            ConfigError: says what to type.
        """
        if self.actions != "tool_calls":
            raise ConfigError(
                f"TOOLCALL_ACTIONS={self.actions} is for training; unset it here, where messages carry calls"
            )
