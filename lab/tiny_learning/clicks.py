"""The screen agent: pages of MiniWoB++ as text, solved by one click on a numbered element.

Of the careless agent's episodes a fifth clicks the right element. In the others it says that it is done at once, or points or
scrolls at the element and says that it is done; some of those click after all. What the page shows is `tiny_learning.screens`.
"""

from __future__ import annotations

from random import Random
from types import MappingProxyType

from agentrl.protocol import JsonObject
from agentrl.tasks.gui.actions import TOOL
from agentrl.tasks.gui.coordinates import CoordinateType
from agentrl.tasks.gui.environment import STEP_S, listed
from agentrl.tasks.gui.miniwob.episode import SCREEN
from agentrl.tasks.gui.miniwob.pages import task_name
from agentrl.tasks.gui.tool import SYSTEM, computer_use
from agentrl.tasks.names import Split
from lab.tiny_learning.screens import names_of, screen_of
from lab.tiny_learning.traces import FIRST_NUMBER, Step, TaskSet, Trace, begun, call

RIGHT, IDLE, POINT = 0.22, 0.22, 0.28
"""Shares of episodes that click, end at once, or point first; the rest scrolls first."""
AGAIN = 0.25
"""Share of such first steps after which the agent clicks."""
SCROLL = -100
ENDED = "The task has ended."
COORDINATES: CoordinateType = "relative"


def name_of(family: str, split: Split, number: int) -> str:
    """Return the name of a task; from `FIRST_NUMBER` up that of a stored page."""
    if number < FIRST_NUMBER:
        return task_name(family, split, number)
    names = names_of(family, split)
    return names[number % len(names)]


def drawn(rng: Random, careless: bool) -> list[str]:
    """Return the actions of an agent in order; one that is not careless clicks at once."""
    kind = rng.random() if careless else 0.0
    if kind < RIGHT:
        return ["left_click"]
    if kind < RIGHT + IDLE:
        return ["terminate"]
    first = "mouse_move" if kind < RIGHT + IDLE + POINT else "scroll"
    return [first, "left_click" if rng.random() < AGAIN else "terminate"]


def reply(action: str, where: JsonObject) -> str:
    """Return the call of an action on a target, such as ``{"element": 3}``."""
    if action == "terminate":
        return call(TOOL, {"action": action, "status": "success"})
    return call(TOOL, {"action": action, **where} | ({"pixels": SCROLL} if action == "scroll" else {}))


def trace(rng: Random, task: str, careless: bool) -> Trace:
    """Return an episode of an agent on a task."""
    page = screen_of(task)
    outcomes = {
        "mouse_move": (listed(page.text), "It points and does not click."),
        "scroll": (listed(page.text), "It scrolls and does not click."),
        "left_click": (listed(page.solved), "It clicks what the goal names."),
        "terminate": (ENDED, "The goal is not reached."),
    }
    steps = [
        Step(reply(action, {"element": page.element}), *outcomes[action], good=action == "left_click")
        for action in drawn(rng, careless)
    ]
    tool = computer_use(COORDINATES, SCREEN.picture, elements=True)
    data = {"system": SYSTEM, "tools": [tool], "actions": "computer_use", "step_seconds": STEP_S}
    return begun(f"Task: {page.instruction}\n\n{listed(page.text)}", data, steps)


GUI = TaskSet(
    name="gui",
    environment="agentrl.tasks.gui.miniwob.environment.MiniWobEnvironment",
    trained=("click_tab", "click_widget", "click_test_2"),
    unseen="focus_text_2",
    task=name_of,
    trace=trace,
    needed=1,
    variables=MappingProxyType({"GUI_OBSERVATION_TYPE": "a11y_tree", "GUI_COORDINATE_TYPE": COORDINATES}),
)
