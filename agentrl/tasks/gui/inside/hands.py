"""Mouse and keyboard by pyautogui: carries out the orders of `agentrl.tasks.gui.orders`.

OSWorld's machines get the text of this file, sandboxes import it. The Python there may be older than ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def prepare(hands: Any, pause: float) -> None:
    """Let pyautogui wait ``pause`` seconds after each call, and type ``<``: it takes a key that types ``>`` with shift."""
    hands.FAILSAFE, hands.PAUSE = False, pause
    codes = hands.platformModule.keyboardMapping
    codes["<"] = codes[","]


def carry_out(order: dict[str, Any], hands: Any, paste: Callable[[str], object], calm: float) -> None:
    """Carry out one order.

    Args:
        order: what to do.
        hands: the module pyautogui.
        paste: types a text that pyautogui has no keys for.
        calm: 1 for the pauses of a person, which the programs of a whole desktop need; 0 for none.
    """
    what, point = order["what"], order.get("point")
    if order.get("start"):
        hands.moveTo(*order["start"])
    if point and what != "drag":
        hands.moveTo(*point)
    if what == "click":
        hands.click(button=order["button"], clicks=order["times"], interval=0.05 * calm)
    elif what == "drag" and point:
        hands.dragTo(*point, duration=0.2 + 0.3 * calm, button="left")
    elif what == "scroll":
        hands.vscroll(order["notches"])
    elif what == "hscroll":
        hands.hscroll(order["notches"])
    elif what == "keys":
        for key in order["keys"]:
            hands.keyDown(key)
        for key in reversed(order["keys"]):
            hands.keyUp(key)
    elif what == "type":
        hands.write(order["text"], interval=0.01 * calm)
    elif what == "paste":
        paste(order["text"])
