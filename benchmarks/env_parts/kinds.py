"""The kinds of episodes that are played: nothing but the protocol, a program per step, a command in a sandbox per step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from agentrl.protocol import JsonObject


@dataclass(frozen=True)
class Kind:
    """An environment, and what is done in it.

    Attributes:
        environment: name of a class in `environments`, or a whole path.
        task: of every episode.
        action: of every step.
        busy_task: whose environment has two sleeping programs once ``begin`` was done; one of them left its process group.
        begin: actions that start these, besides `reset`.
        sleep: action that does not end within a benchmark.
    """

    environment: str
    task: str
    action: JsonObject
    busy_task: str
    begin: tuple[JsonObject, ...]
    sleep: JsonObject


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        "Trivial": Kind("Trivial", "trivial", {}, "trivial", (), {}),
        "Program": Kind("Program", "program", {"line": "echo done"}, "background", (), {"line": "exec sleep 3602"}),
        "Shell": Kind(
            "agentrl.tasks.shell.environment.ShellEnvironment",
            "shell/sum_column/train/0",
            {"tool": "bash", "arguments": {"command": "echo done"}},
            "shell/sum_column/train/0",
            (
                {
                    "tool": "bash",
                    "arguments": {"command": "sleep 3600 >/dev/null 2>&1 & setsid sleep 3601 >/dev/null 2>&1 &"},
                },
            ),
            {"tool": "bash", "arguments": {"command": "exec sleep 599", "timeout_s": 600}},
        ),
    }
)
WITH_PROGRAMS = ("Program", "Shell")
