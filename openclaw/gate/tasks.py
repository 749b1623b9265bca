"""Tasks whose answers can be verified: the operator's own, read from ``OPENCLAW_GATE_TASKS``.

Guarantees: the file is checked as a whole before anything starts, and an error names the line and what to write. A reply is
right or wrong without any model.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from groundwork.chat_messages import Message
from groundwork.data_rows import read_json, read_text
from groundwork.exceptions import ConfigError

FORMAT = '{"messages": [{"role": "user", "content": "2 + 3?"}], "number": 5}'
MAX_WEIGHT = 100
TOLERANCE = 1e-6
NUMBER = re.compile(r"[+-]?\d+(?:,\d{3})*(?:\.\d+)?(?:[eE][+-]?\d+)?")


@dataclass(frozen=True)
class Task:
    """A question with its answer.

    Attributes:
        messages: of the request.
        text: the whole reply, without spaces around it; None: see the others.
        number: the last number in the reply.
        pattern: occurs in the reply.
        weight: how many tasks it counts for.
    """

    messages: list[Message]
    text: str | None = None
    number: float | None = None
    pattern: re.Pattern[str] | None = None
    weight: int = 1

    def solved_by(self, reply: str) -> bool:
        """Return whether a reply is right."""
        if self.text is not None:
            return reply.strip() == self.text.strip()
        if self.pattern is not None:
            return self.pattern.search(reply) is not None
        matches = NUMBER.findall(reply)
        right = self.number or 0.0
        return bool(matches) and math.isclose(
            float(matches[-1].replace(",", "")), right, rel_tol=TOLERANCE, abs_tol=TOLERANCE
        )


def read_tasks(path: str | Path) -> list[Task]:
    """Return the tasks of a file of JSON lines.

    Raises:
        ConfigError: naming the first bad line and what to write.
    """
    try:
        text = read_text(Path(path))
    except (OSError, ValueError) as error:
        raise ConfigError(f"OPENCLAW_GATE_TASKS={path} cannot be read: {error}") from error
    tasks = [
        _task(line, f"OPENCLAW_GATE_TASKS={path} line {number}")
        for number, line in enumerate(text.split("\n"), start=1)
        if line.strip()
    ]
    if not tasks:
        raise ConfigError(f"OPENCLAW_GATE_TASKS={path} has no task; write lines like {FORMAT}")
    return tasks


def _is_object(value: object) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _task(line: str, where: str) -> Task:
    try:
        value: object = read_json(line)
    except ValueError as error:
        raise ConfigError(f"{where} is not JSON ({error}); write {FORMAT}") from error
    if not _is_object(value):
        raise ConfigError(f"{where} is not an object; write {FORMAT}")
    known = {"messages", "text", "number", "pattern", "weight"}
    if unknown := sorted(value.keys() - known):
        raise ConfigError(f"{where}: unknown field {unknown[0]!r}; use {', '.join(sorted(known))}")
    messages = value.get("messages")
    if (
        not isinstance(messages, list)
        or not messages
        or not all(_is_object(message) and "role" in message for message in messages)
    ):
        raise ConfigError(f"{where}: messages is not a list of messages; write {FORMAT}")
    answers = [name for name in ("text", "number", "pattern") if value.get(name) is not None]
    if len(answers) != 1:
        raise ConfigError(f"{where}: give one of text, number and pattern, not {len(answers)}")
    return Task(
        messages, weight=_weight(value.get("weight", 1), where), **_answer(answers[0], value[answers[0]], where)
    )


def _weight(weight: object, where: str) -> int:
    if isinstance(weight, bool) or not isinstance(weight, int) or not 1 <= weight <= MAX_WEIGHT:
        raise ConfigError(f"{where}: weight {weight!r} is not a whole number from 1 to {MAX_WEIGHT}")
    return weight


def _answer(name: str, answer: object, where: str) -> dict[str, Any]:
    """Return the checked answer as a field of `Task`."""
    if name == "number":
        if isinstance(answer, bool) or not isinstance(answer, int | float) or not math.isfinite(answer):
            raise ConfigError(f"{where}: number {answer!r} is not a number; use text for words")
        return {"number": float(answer)}
    if not isinstance(answer, str) or not answer.strip():
        raise ConfigError(f"{where}: {name} {answer!r} is not a text")
    if name == "text":
        return {"text": answer}
    try:
        return {"pattern": re.compile(answer)}
    except re.error as error:
        raise ConfigError(f"{where}: pattern {answer!r} is not a regular expression: {error}") from error
