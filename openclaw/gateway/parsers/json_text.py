"""Finds the end of a JSON object in streamed text, and parses JSON from a model."""

from __future__ import annotations

import json
from typing import Any


class ObjectScanner:
    """Scans one JSON object to its end; owns the state of one object."""

    def __init__(self, *, depth: int = 0, stop_at: str = "") -> None:
        """Start an object.

        Args:
            depth: number of braces already open.
            stop_at: a character that ends the object when it appears outside a string.
        """
        self.broken = False
        self._depth = depth
        self._stop_at = stop_at
        self._in_string = False
        self._escaped = False

    def end(self, text: str) -> int | None:
        """Return the object's end in ``text``, its next piece, or None; set ``broken`` if it is cut short."""
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
        ValueError: if it is invalid, has NaN or infinity, a lone surrogate, or nests too deep.
    """
    try:
        text.encode()
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("nested too deep") from error
    return value


def read_call(text: str) -> tuple[str, str]:
    """Return the name and the arguments' JSON text of a call that is one JSON object.

    Raises:
        ValueError: if it is not a call.
    """
    call = read_json(text)
    if not isinstance(call, dict) or not isinstance(name := call.get("name"), str) or not name:
        raise ValueError("not a tool call")
    arguments = call.get("arguments", call.get("parameters", {}))
    if not isinstance(arguments, dict | str):
        raise ValueError("arguments are not an object")
    return name, arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is not JSON")
