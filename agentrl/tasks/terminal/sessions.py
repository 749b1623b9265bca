"""Persistent shells in an agent's sandbox, by id: the host's half of `agentrl.tasks.terminal.session_program`.

Guarantees: everything runs in the sandbox. What comes back is data of the agent's sandbox: it is checked, and an agent that
breaks its own sessions gets an `InvalidError`. Without a block, or after it, a command goes on in the background.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from agentrl.exceptions import InvalidError
from agentrl.sandbox.interface import HOME, Sandbox

FOLDER = "/tmp/.sessions"
MOST_OUTPUT = 16_384
"""Bytes of output that a look shows."""
ANSWER_S = 30.0
"""Beyond the wait: after which a session counts as broken."""
Do = Literal["exec", "view", "write"]


class Seen(BaseModel):
    """What a session answered.

    Attributes:
        output: since the last look.
        cut: bytes left out in its middle.
        running: whether a command runs.
        status: of the last command that ended; of the shell, if that ended.
        ended: whether the shell has ended.
        error: why nothing was done.
    """

    model_config = ConfigDict(strict=True, frozen=True)
    output: Annotated[str, Field(max_length=2 * MOST_OUTPUT)] = ""
    cut: int = 0
    running: bool = False
    status: int | None = None
    ended: bool = False
    error: str = ""


async def call(sandbox: Sandbox, session: str, do: Do, text: str, wait_s: float) -> Seen:
    """Do something in a session, and return what is seen after at most ``wait_s``, or earlier if its command ended.

    Raises:
        InvalidError: the session's process gives no answer; the agent has damaged it.
        InfraError: the sandbox is gone.
    """
    request = {"id": session, "do": do, "text": text, "wait_s": wait_s, "most": MOST_OUTPUT}
    result = await sandbox.execute(
        ["python3", "-I", "-c", _program(), FOLDER, HOME],
        timeout_s=wait_s + ANSWER_S,
        stdin=json.dumps(request).encode(),
        most_output=16 * MOST_OUTPUT,
    )
    try:
        return Seen.model_validate_json(result.output)
    except ValidationError:
        raise InvalidError(
            f"session {session!r} does not answer; use another id, or bash", code="session_broken"
        ) from None


@cache
def _program() -> str:
    return (Path(__file__).parent / "session_program.py").read_text()
