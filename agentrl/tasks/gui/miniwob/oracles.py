"""Agents that solve some families from the page's elements: the proof that tasks, actions and judge fit together.

An oracle sees what an agent with eyes sees: the instruction, and where which text stands. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from agentrl.protocol import JsonObject
from agentrl.tasks.gui.actions import TOOL
from agentrl.tasks.gui.coordinates import CoordinateType, from_screen
from agentrl.tasks.gui.dom import Element
from agentrl.tasks.gui.miniwob.episode import SCREEN

Steps = Iterator[tuple[str, Element | str]]
"""``click`` and an element, or ``type`` and a text."""
Oracle = Callable[[str, Sequence[Element]], Steps]
QUOTED = re.compile(r'"([^"]*)"')
ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
COLORS: Mapping[str, str] = {
    "red": "rgb(255, 0, 0)",
    "blue": "rgb(0, 0, 255)",
    "olive": "rgb(128, 128, 0)",
    "lime": "rgb(0, 255, 0)",
    "black": "rgb(0, 0, 0)",
    "white": "rgb(255, 255, 255)",
    "grey": "rgb(128, 128, 128)",
    "purple": "rgb(128, 0, 128)",
    "orange": "rgb(255, 165, 0)",
    "yellow": "rgb(255, 255, 0)",
    "cyan": "rgb(0, 255, 255)",
    "pink": "rgb(255, 192, 203)",
    "magenta": "rgb(255, 0, 255)",
}
"""What the pages call colors, and how a browser writes them."""


def _with_text(found: Sequence[Element], text: str, tag: str = "") -> Element:
    """Return the element with a text: with this very text, or else whatever its case."""
    alike = [e for e in found if e.text.lower() == text.lower() and e.tag.startswith(tag)]
    return next((e for e in alike if e.text == text), alike[0])


def _inputs(found: Sequence[Element], *kinds: str) -> list[Element]:
    return [e for e in found if e.tag in {f"input({kind})" for kind in kinds or ("text", "password")}]


def _one_button(said: str, found: Sequence[Element]) -> Steps:
    yield "click", next(e for e in found if e.tag == "button")


def _named_button(said: str, found: Sequence[Element]) -> Steps:
    yield "click", _with_text(found, said.removeprefix("Click button ").rstrip("."), "button")


def _button_sequence(said: str, found: Sequence[Element]) -> Steps:
    for name in re.findall(r"button (\w+)", said):
        yield "click", _with_text(found, name, "button")


def _quoted_button(said: str, found: Sequence[Element]) -> Steps:
    yield "click", _with_text(found, QUOTED.findall(said)[0], "button")


def _link(said: str, found: Sequence[Element]) -> Steps:
    yield "click", _with_text(found, QUOTED.findall(said)[0], "span")


def _close(said: str, found: Sequence[Element]) -> Steps:
    yield "click", next(e for e in found if "titlebar-close" in e.hint)


def _focus(said: str, found: Sequence[Element]) -> Steps:
    ordinal = ORDINAL.search(said)
    yield "click", _inputs(found)[int(ordinal[1]) - 1 if ordinal else 0]


def _colored(said: str, found: Sequence[Element]) -> Steps:
    color = COLORS[said.removeprefix("Click on the ").removesuffix(" colored box.")]
    yield "click", next(e for e in found if e.hint == "color" and e.color == color)


def _tab(said: str, found: Sequence[Element]) -> Steps:
    yield "click", _with_text(found, said.removeprefix("Click on ").rstrip("."), "a")


def _widget(said: str, found: Sequence[Element]) -> Steps:
    kind = QUOTED.findall(said)[0]
    yield "click", next(e for e in found if e.tag in (kind, f"input({kind})"))


def _fill(said: str, found: Sequence[Element]) -> Steps:
    texts, fields = QUOTED.findall(said), _inputs(found)
    for number, field in enumerate(fields):
        yield "click", field
        yield "type", texts[min(number, len(texts) - 1)]
    yield "click", next(e for e in found if e.tag == "button")


def _check(said: str, found: Sequence[Element]) -> Steps:
    named = said.removeprefix("Select ").removesuffix(" and click Submit.")
    for name in [] if named == "nothing" else named.split(", "):
        yield "click", next(e for e in _inputs(found, "checkbox", "radio") if e.name == name)
    yield "click", _with_text(found, "Submit", "button")


ORACLES: dict[str, Oracle] = {
    "click_test": _one_button,
    "click_test_2": _named_button,
    "click_button": _quoted_button,
    "click_button_sequence": _button_sequence,
    "click_link": _link,
    "click_dialog": _close,
    "click_color": _colored,
    "click_tab": _tab,
    "click_widget": _widget,
    "click_checkboxes": _check,
    "click_option": _check,
    "focus_text": _focus,
    "focus_text_2": _focus,
    "enter_text": _fill,
    "enter_password": _fill,
    "login_user": _fill,
}


def solve(
    family: str,
    instruction: str,
    found: Sequence[Element],
    coordinates: CoordinateType = "relative",
) -> list[JsonObject]:
    """Return the actions that solve a task, as an environment takes them."""
    actions: list[JsonObject] = []
    for what, target in ORACLES[family](instruction, found):
        if isinstance(target, Element):
            point = from_screen((target.x, target.y), coordinates, SCREEN.picture, (SCREEN.width, SCREEN.height))
            arguments: JsonObject = {"action": f"left_{what}", "coordinate": [*point]}
        else:
            arguments = {"action": what, "text": target}
        actions.append({"tool": TOOL, "arguments": arguments})
    return actions
