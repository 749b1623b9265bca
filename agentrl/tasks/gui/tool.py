"""``computer_use`` as the policy is told of it: schema and system prompt."""

from __future__ import annotations

from agentrl.protocol import JsonObject
from agentrl.tasks.gui.actions import ACTIONS, MOST_WAIT_S, STATUSES, TOOL
from agentrl.tasks.gui.coordinates import CoordinateType, space

MEANINGS = """* key: press the keys of `keys` together, and release them.
* type: type `text`; a line break is the enter key.
* mouse_move: move the pointer to the target.
* left_click, right_click, middle_click, double_click, triple_click: at the target, or where the pointer is.
* left_click_drag: press the left button at `start_coordinate`, or where the pointer is, and release it at the target.
* scroll: by `pixels` at the target, or where the pointer is; positive is up, negative is down.
* hscroll: the same; positive is right, negative is left.
* wait: for `time` seconds.
* terminate: end the task with `status`."""


def computer_use(kind: CoordinateType, picture: tuple[int, int], *, elements: bool) -> JsonObject:
    """Return the tool in OpenAI's format.

    Args:
        kind: of coordinates.
        picture: width and height of the pictures.
        elements: whether the page's elements are numbered.
    """
    columns, rows = space(kind, picture)
    where = f"[x, y] with x from 0 (left) to {columns - 1} (right) and y from 0 (top) to {rows - 1} (bottom)"
    pair: JsonObject = {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    properties: JsonObject = {
        "action": {"type": "string", "enum": list(ACTIONS), "description": MEANINGS},
        "keys": {"type": "array", "items": {"type": "string"}, "description": "names of keys, such as ctrl and a"},
        "text": {"type": "string"},
        "coordinate": {**pair, "description": f"the target: {where}"},
        "start_coordinate": {**pair, "description": "where a drag begins"},
        "pixels": {"type": "number"},
        "time": {"type": "number", "minimum": 0, "maximum": MOST_WAIT_S},
        "status": {"type": "string", "enum": list(STATUSES)},
    }
    if elements:
        properties["element"] = {"type": "integer", "description": "the target, by its number in the page's text"}
    target = "The target is `coordinate` or `element`." if elements else "The target is `coordinate`."
    return {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": f"Use mouse and keyboard of a computer. {target} Each action changes the screen; look at it again.",
            "parameters": {"type": "object", "properties": properties, "required": ["action"]},
        },
    }


SYSTEM = f"""You work on a computer by mouse and keyboard to carry out a task. After each action you see the screen again. \
Write one short sentence about what you do next, then exactly one call of {TOOL}. When the task is done, or cannot be done, \
call it with the action terminate."""
