"""What a call of ``computer_use`` means: one action with mouse or keyboard, read strictly.

Guarantee: an argument that is unknown, missing, of the wrong type or out of range is an `InvalidError` that says what to
write. Nothing is guessed, and nothing is code. Pure.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from agentrl.exceptions import InvalidError
from agentrl.protocol import JsonObject
from agentrl.tasks.gui.keys import key_of

TOOL = "computer_use"
CLICKS = {
    "left_click": ("left", 1),
    "double_click": ("left", 2),
    "triple_click": ("left", 3),
    "right_click": ("right", 1),
    "middle_click": ("middle", 1),
}
"""Button and number of clicks."""
NEEDS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(CLICKS, ()),
    "mouse_move": ("target",),
    "left_click_drag": ("target",),
    "scroll": ("pixels",),
    "hscroll": ("pixels",),
    "key": ("keys",),
    "type": ("text",),
    "wait": ("time",),
    "terminate": ("status",),
}
"""The arguments that each action must have; ``target`` is ``coordinate`` or ``element``."""
POINTED = {*CLICKS, "mouse_move", "left_click_drag", "scroll", "hscroll"}
ACTIONS = tuple(NEEDS)
STATUSES = ("success", "failure")
MAX_TEXT, MAX_KEYS, MAX_PIXELS, MOST_WAIT_S = 4096, 4, 10_000, 60.0
HOW = f"call {TOOL} with an action of {', '.join(ACTIONS)}"
Point = tuple[float, float]


@dataclass(frozen=True)
class Action:
    """One action.

    Attributes:
        name: of `ACTIONS`.
        point: where, in the coordinates of the model; None: where the pointer is.
        start: of a drag; None: where the pointer is.
        element: number of an element of the page's text, in place of ``point``.
        keys: pressed together.
        text: to type.
        pixels: to scroll; positive is up, or right.
        seconds: to wait.
        status: with which the agent ends.
    """

    name: str
    point: Point | None = None
    start: Point | None = None
    element: int | None = None
    keys: tuple[str, ...] = ()
    text: str = ""
    pixels: int = 0
    seconds: float = 0.0
    status: str = ""


def read_call(action: JsonObject) -> Action:
    """Return the action of ``{"tool": "computer_use", "arguments": {...}}``.

    Raises:
        InvalidError: it is no such call; says what to write.
    """
    arguments = action.get("arguments")
    if action.get("tool") != TOOL or not isinstance(arguments, dict):
        raise InvalidError(f"this is not an action; {HOW}, or terminate", code="no_action")
    return read_arguments(arguments)


def read_arguments(arguments: JsonObject) -> Action:
    """Return the action of the tool's arguments.

    Raises:
        InvalidError: they make no sense; says what to write.
    """
    name = arguments.get("action")
    if not isinstance(name, str) or name not in NEEDS:
        raise _wrong(f"there is no action {str(name)[:40]!r}; {HOW}")
    allowed = {"target": ("coordinate", "element"), "time": ("time",)}
    known = {"action", *(item for need in NEEDS[name] for item in allowed.get(need, (need,)))}
    known |= {"coordinate", "element"} if name in POINTED else set()
    known |= {"start_coordinate"} if name == "left_click_drag" else set()
    if unknown := sorted(set(arguments) - known):
        raise _wrong(f"{name} takes no {', '.join(map(str, unknown))[:80]}; it takes {', '.join(sorted(known))}")
    for need in NEEDS[name]:
        if not any(item in arguments for item in allowed.get(need, (need,))):
            raise _wrong(f"{name} needs {' or '.join(allowed.get(need, (need,)))}; add it")
    if "coordinate" in arguments and "element" in arguments:
        raise _wrong("give coordinate or element, not both")
    return Action(
        name,
        point=_point(arguments, "coordinate"),
        start=_point(arguments, "start_coordinate"),
        element=_element(arguments),
        keys=_keys(arguments),
        text=_text(arguments),
        pixels=round(_number(arguments, "pixels", -MAX_PIXELS, MAX_PIXELS)),
        seconds=_number(arguments, "time", 0.0, MOST_WAIT_S),
        status=_status(arguments),
    )


def _point(arguments: JsonObject, name: str) -> Point | None:
    if name not in arguments:
        return None
    value = arguments[name]
    if not isinstance(value, list) or len(value) != 2 or not all(map(_is_number, value)):
        raise _wrong(f"{name} is [x, y], two numbers")
    x, y = (float(item) for item in value)  # type: ignore[arg-type]
    return x, y


def _element(arguments: JsonObject) -> int | None:
    value = arguments.get("element")
    if "element" in arguments and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise _wrong("element is the number of an element in the page's text")
    return value if isinstance(value, int) else None


def _keys(arguments: JsonObject) -> tuple[str, ...]:
    if "keys" not in arguments:
        return ()
    value = arguments["keys"]
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, list) or not 1 <= len(names) <= MAX_KEYS:
        raise _wrong(f"keys is a list of 1 to {MAX_KEYS} names of keys")
    for name in names:
        if not isinstance(name, str) or key_of(name) is None:
            raise _wrong(f"there is no key {str(name)[:40]!r}; write names such as enter, tab, ctrl or a")
    return tuple(str(name) for name in names)


def _text(arguments: JsonObject) -> str:
    value = arguments.get("text", "")
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise _wrong(f"text is a string of at most {MAX_TEXT} characters")
    return value


def _number(arguments: JsonObject, name: str, least: float, most: float) -> float:
    value = arguments.get(name, 0)
    if not _is_number(value) or not least <= float(value) <= most:  # type: ignore[arg-type]
        raise _wrong(f"{name} is a number from {least:g} to {most:g}")
    return float(value)  # type: ignore[arg-type]


def _status(arguments: JsonObject) -> str:
    value = arguments.get("status", "")
    if "status" in arguments and value not in STATUSES:
        raise _wrong(f"status is {' or '.join(STATUSES)}")
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _wrong(message: str) -> InvalidError:
    return InvalidError(message, code="invalid_action")
