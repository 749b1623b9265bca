"""What the agent with eyes is trained and measured on."""

from __future__ import annotations

from types import MappingProxyType

from agentrl.tasks.gui.miniwob.pages import task_name
from lab.tiny_learning.clicks import COORDINATES, GUI
from lab.tiny_learning.traces import AgentTasks

GUI_PICTURES = AgentTasks(
    name="gui_pictures",
    environment=GUI.environment,
    trained=("click_test_2", "click_dialog", "click_color"),
    unseen="focus_text",
    task=task_name,
    variables=MappingProxyType({"GUI_OBSERVATION_TYPE": "screenshot", "GUI_COORDINATE_TYPE": COORDINATES}),
)
