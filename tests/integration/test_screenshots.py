"""Rendered pages of the warm start are those of the environment, pixel by pixel, and a click on their targets solves them."""

from __future__ import annotations

import base64
from pathlib import Path

import numpy
import pytest

from agentrl.environment import Task
from agentrl.tasks.gui.miniwob.environment import MiniWobEnvironment
from agentrl.tasks.gui.miniwob.pages import task_name
from lab.tiny_learning.pictures.pages import FAMILIES, pixels, render
from lab.tiny_learning.pictures.pointing import coordinate
from tests.helpers.gui_agents import gui_environment, needs_browser, use

pytestmark = [pytest.mark.integration, needs_browser]


async def test_a_rendered_page_is_what_the_environment_shows(tmp_path: Path) -> None:
    async with gui_environment(tmp_path, MiniWobEnvironment) as environment:
        for family in FAMILIES:
            names = [task_name(family, "train", number) for number in (1000, 1001)]
            screens = await render(names)
            assert [page.name for page in screens.pages] == names
            for page, picture in zip(screens.pages, screens.pictures, strict=True):
                first = await environment.reset(Task(page.name), 0)
                assert first.text == f"Task: {page.instruction}"
                assert numpy.array_equal(pixels(base64.b64decode(first.images[0])), picture), page.name
            for page in screens.pages:  # afterwards, since a click leaves the pointer there
                await environment.reset(Task(page.name), 0)
                await environment.step(use("left_click", coordinate=coordinate(page)))
                assert (await environment.evaluate()).score == 1, page.name
