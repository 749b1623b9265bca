"""A program that answers each line of JSON with a line of JSON.

Guarantee: whatever the program does wrong is an `InfraError`: it ends, prints something else, or reports a failure of its
own. One question at a time. After an error, or a question that was cut off, the program is of no more use.
"""

from __future__ import annotations

import json
from asyncio.subprocess import Process
from typing import Any

from agentrl.exceptions import InfraError
from agentrl.protocol import MOST_ITEMS, JsonObject, is_quick

MOST_BYTES = 1 << 24
"""Of an answer."""
SHOWN = 200


class Lines:
    """Asks one program; the process stays its starter's. Start it with ``limit=MOST_BYTES``."""

    def __init__(self, name: str, process: Process) -> None:
        """Take over the pipes of ``process``, whose name appears in errors."""
        assert process.stdin is not None
        assert process.stdout is not None
        self._name = name
        self._process = process
        self._to, self._from = process.stdin, process.stdout
        self._broken = False

    async def ask(self, question: JsonObject) -> dict[str, Any]:
        """Return the answer to a question.

        Raises:
            InfraError: there is none; ``code`` is ``worker_lost``, ``worker_garbage``, or ``worker_failed`` with the
                program's own words.
        """
        if self._broken:
            raise InfraError(f"{self._name} failed before; take a new lease", code="worker_lost")
        self._broken = True
        try:
            self._to.write(json.dumps(question).encode() + b"\n")
            await self._to.drain()
            line = await self._from.readline()
        except (ConnectionError, ValueError) as error:
            raise InfraError(f"{self._name} cannot be asked: {error}", code="worker_lost") from error
        if not line.endswith(b"\n"):
            status = await self._process.wait()
            raise InfraError(f"{self._name} ended with status {status}; see the pool's log", code="worker_lost")
        try:
            answer = json.loads(line) if is_quick(line) else None
        except (ValueError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise InfraError(
                f"{self._name} printed no JSON object of at most {MOST_ITEMS} values: {line[:SHOWN]!r}",
                code="worker_garbage",
            )
        if "error" in answer:
            raise InfraError(f"{self._name}: {answer['error']}", code="worker_failed")
        self._broken = False
        return answer
