"""The screen agent with eyes: one click on the screenshot of a page of MiniWoB++.

Of the careless agent's episodes a fifth clicks what the task names. In the others it says that it is done at once, or points or
scrolls at it and says that it is done; some of those click after all. Where it points is for its eyes to find.
"""

from __future__ import annotations

from random import Random

from agentrl.protocol import JsonObject, Observation
from agentrl.rollout.actions import opening
from agentrl.tasks.gui.coordinates import from_screen
from agentrl.tasks.gui.environment import STEP_S
from agentrl.tasks.gui.miniwob.episode import SCREEN
from agentrl.tasks.gui.tool import SYSTEM, computer_use
from lab.tiny_learning.clicks import COORDINATES, ENDED, drawn, reply
from lab.tiny_learning.pictures.encode import PICTURE
from lab.tiny_learning.pictures.pages import Page
from lab.tiny_learning.pictures.words import STEP
from lab.tiny_learning.traces import Step, Trace


def coordinate(page: Page) -> list[int]:
    """Return the middle of a page's target as the warm start writes it."""
    exact = from_screen(page.point, COORDINATES, SCREEN.picture, (SCREEN.width, SCREEN.height))
    return [value // STEP * STEP + STEP // 2 for value in exact]


def trace(rng: Random, page: Page, careless: bool) -> Trace:
    """Return an episode of an agent on a page."""
    where: JsonObject = {"coordinate": [*coordinate(page)]}
    outcomes = {
        "mouse_move": ("", "It does not click."),
        "scroll": ("", "It does not click."),
        "left_click": (ENDED, "It clicks what the goal names."),
        "terminate": (ENDED, "The goal is not reached."),
    }
    steps = [
        Step(reply(action, where), *outcomes[action], good=action == "left_click") for action in drawn(rng, careless)
    ]
    begin = opening(Observation(text=f"Task: {page.instruction}", data=told()), pictures=[PICTURE])
    return Trace(begin.messages, begin.tools, steps)


def told() -> JsonObject:
    """Return what the environment says of itself when an episode begins."""
    tool = computer_use(COORDINATES, SCREEN.picture, elements=False)
    return {"system": SYSTEM, "tools": [tool], "actions": "computer_use", "step_seconds": STEP_S}
