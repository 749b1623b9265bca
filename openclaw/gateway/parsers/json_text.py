"""Finding the end of a JSON object in text that arrives in pieces, and reading JSON that a model wrote."""

from __future__ import annotations

import json
from typing import Any


class ObjectScanner:
    """Follows one JSON object to its end; owns the state of one object."""

    def __init__(self, *, depth: int = 0, stop_at: str = "") -> None:
        """Start an object.

        Args:
            depth: how many braces were open before.
            stop_at: a character that is no JSON outside a string, and ends the object as well.
        """
        self.broken = False
        self._depth = depth
        self._stop_at = stop_at
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Return where the object ends in ``text``, the next piece of it, or None; ``broken`` when it was cut short."""
        for position, character in enumerate(text):
            if self._in_string:
                if self._escaped:
                    self._escaped = False
                elif character == "\\":
                    self._escaped = True
                elif character == '"':
                    self._in_string = False
            elif character == '"':
                self._in_string = True
            elif character == "{":
                self._depth += 1
            elif character == "}":
                self._depth -= 1
                if self._depth == 0:
                    return position + 1
            elif character == self._stop_at:
                self.broken = True
                return position
        return None


def read_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: when it is none, holds numbers that JSON does not have, half a character, or nests too deep.
    """
    try:
        text.encode()
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return value


def read_call(text: str) -> tuple[str, str]:
    """Return name and JSON text of the arguments of a call that is one object.

    Raises:
        ValueError: when it is none.
    """
    call = read_json(text)
    if not isinstance(call, dict) or not isinstance(name := call.get("name"), str) or not name:
        raise ValueError("no tool call")
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, dict | str):
        raise ValueError("arguments are no object")
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")
