"""Actions as orders to pyautogui, wherever it runs: plain data that a fixed program reads (`agentrl.tasks.gui.inside.hands`).

Guarantee: nothing of an action is ever code. Pure.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import JsonValue

from agentrl.protocol import JsonObject
from agentrl.tasks.gui.actions import CLICKS, Action, Point
from agentrl.tasks.gui.keys import key_of

INSIDE = Path(__file__).resolve().parent / "inside"
"""The folder of the programs that run where pyautogui is."""
PIXELS_PER_NOTCH = 50


def order_of(action: Action, point: Point | None, start: Point | None) -> JsonObject:
    """Return the order of an action other than ``wait`` and ``terminate``, at points of the screen in pixels."""
    order: JsonObject = {"point": _whole(point), "start": _whole(start)}
    if action.name in CLICKS:
        button, times = CLICKS[action.name]
        return {**order, "what": "click", "button": button, "times": times}
    if action.name == "left_click_drag":
        return {**order, "what": "drag"}
    if action.name in ("scroll", "hscroll"):
        notches = action.pixels / PIXELS_PER_NOTCH
        whole = round(notches) or (1 if notches > 0 else -1 if notches < 0 else 0)
        return {**order, "what": action.name, "notches": whole}
    if action.name == "key":
        return {"what": "keys", "keys": [key.pyautogui for name in action.keys if (key := key_of(name))]}
    if action.name == "type":
        return {"what": "type" if action.text.isascii() else "paste", "text": action.text.replace("\r\n", "\n")}
    return {**order, "what": "move"}


def _whole(point: Point | None) -> JsonValue:
    return None if point is None else [int(item) for item in point]
