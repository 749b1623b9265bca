"""Agents that solve the desktop tasks from what is seen: the proof that tasks, actions and judge fit together.

An oracle gets the instruction, and after each of its actions where which text stands. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Mapping, Sequence

from agentrl.protocol import JsonObject
from agentrl.tasks.gui.actions import TOOL
from agentrl.tasks.gui.coordinates import CoordinateType, from_screen
from agentrl.tasks.gui.desktop.screen import SIZE
from agentrl.tasks.gui.dom import Element

Seen = Sequence[Element]
Move = tuple[JsonObject, str | None]
"""Arguments of an action, and the text or name of the element that it is at."""
Moves = Generator[Move, Seen, None]
QUOTED = re.compile(r'"([^"]*)"')
CLICK: JsonObject = {"action": "left_click"}


def _fill_form(said: str, seen: Seen) -> Moves:
    for text, name in re.findall(r'"([^"]*)" as (\w+)', said):
        yield CLICK, name
        yield {"action": "type", "text": text}, None
    yield CLICK, "Save"


def _change_settings(said: str, seen: Seen) -> Moves:
    for name in [*QUOTED.findall(said), "Apply"]:
        yield CLICK, name


def _open_file(said: str, seen: Seen) -> Moves:
    (file,) = QUOTED.findall(said)
    while not any(item.text == file for item in seen):
        seen = yield {"action": "scroll", "pixels": -50}, "File"
    yield CLICK, file
    yield CLICK, "Open"


def _sort_cards(said: str, seen: Seen) -> Moves:
    for card, box in re.findall(r'"([^"]*)" into "([^"]*)"', said):
        yield {"action": "mouse_move"}, card
        yield {"action": "left_click_drag"}, box
    yield CLICK, "Done"


def _write_note(said: str, seen: Seen) -> Moves:
    (text,) = QUOTED.findall(said)
    yield CLICK, "Note"
    yield {"action": "key", "keys": ["ctrl", "a"]}, None
    yield {"action": "type", "text": text}, None
    yield {"action": "key", "keys": ["ctrl", "s"]}, None


ORACLES: Mapping[str, Callable[[str, Seen], Moves]] = {
    "fill_form": _fill_form,
    "change_settings": _change_settings,
    "open_file": _open_file,
    "sort_cards": _sort_cards,
    "write_note": _write_note,
}


def actions(
    family: str, instruction: str, seen: Seen, coordinates: CoordinateType = "relative"
) -> Generator[JsonObject, Seen, None]:
    """Yield the actions that solve a task, as an environment takes them; send what is seen after each."""
    moves = ORACLES[family](instruction, seen)
    move = next(moves, None)
    while move is not None:
        arguments, name = move
        if name is not None:
            at = next(item for item in seen if name in (item.text, item.name))
            arguments = {**arguments, "coordinate": [*from_screen((at.x, at.y), coordinates, SIZE, SIZE)]}
        seen = yield {"tool": TOOL, "arguments": arguments}
        try:
            move = moves.send(seen)
        except StopIteration:
            return
