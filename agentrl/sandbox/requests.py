"""What a supervisor is asked for a command, and its answer, however the two travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agentrl.exceptions import InvalidError
from agentrl.sandbox.inside.wire import MOST_BODY
from agentrl.sandbox.interface import ExecResult


def execute_request(
    argv: Sequence[str], environment: Mapping[str, str], *, timeout_s: float, cwd: str, most_output: int
) -> dict[str, Any]:
    """Return the request to run a program; see `agentrl.sandbox.interface.Sandbox.execute`.

    Args:
        argv: the program and its arguments.
        environment: its whole environment.
        timeout_s: seconds.
        cwd: folder that it runs in.
        most_output: bytes of output that are kept.

    Raises:
        InvalidError: there is no program, a bound is out of range, or a text cannot be passed to a program.
    """
    if not argv or not argv[0]:
        raise InvalidError("there is no program to run; argv is empty", code="bad_command")
    if not 0 <= most_output <= MOST_BODY or timeout_s <= 0:
        raise InvalidError(
            f"most_output must be 0 to {MOST_BODY} and timeout_s above 0, not {most_output} and {timeout_s}",
            code="bad_command",
        )
    words = [*argv, *environment, *environment.values(), cwd]
    if any("\0" in each for each in words) or any("=" in name or not name for name in environment):
        raise InvalidError("arguments and variables hold no NUL, and names of variables no '='", code="bad_command")
    return {
        "do": "execute",
        "argv": list(argv),
        "env": dict(environment),
        "cwd": cwd,
        "timeout_s": timeout_s,
        "most_output": most_output,
    }


def exec_result(answer: Mapping[str, Any], output: bytes) -> ExecResult:
    """Return what a command did, from the supervisor's answer."""
    return ExecResult(answer["exit_code"], output, answer["cut_bytes"], answer["timed_out"], float(answer["seconds"]))
