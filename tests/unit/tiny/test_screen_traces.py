"""The screen agent's traces: real calls on real pages, of tasks that no run trains on, in an environment that shows text."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from agentrl.tasks.gui.actions import Action, read_call
from agentrl.tasks.gui.miniwob.pages import TASKS_PER_FAMILY, parse_name
from agentrl.tasks.gui.settings import GuiSettings
from lab.tiny_learning import training
from lab.tiny_learning.clicks import GUI
from lab.tiny_learning.screens import PAGES, names_of, screen_of
from lab.tiny_learning.traces import FIRST_NUMBER, Step
from lab.tiny_learning.training import HELDOUT_TASKS, TRAINED_TASKS, Plan, Sizes, start_training


def action_of(step: Step) -> Action:
    called = json.loads(step.text.split("\n")[1])
    return read_call({"tool": called["name"], "arguments": called["arguments"]})


def test_a_trace_makes_calls_that_the_environment_reads() -> None:
    rng, kinds = random.Random(0), set[str]()
    for _ in range(200):
        task, trace = GUI.drawn(rng)
        page = screen_of(task)
        actions = [action_of(step) for step in trace.steps]
        kinds |= {action.name for action in actions}
        assert page.text in trace.messages[-1]["content"]
        assert {action.element for action in actions} <= {page.element, None}
        assert [action.name == "left_click" for action in actions] == [step.good for step in trace.steps]
        assert [action.name in ("left_click", "terminate") for action in actions][-1]
    assert kinds == {"left_click", "mouse_move", "scroll", "terminate"}


def test_the_clicked_element_is_what_the_goal_names() -> None:
    for name in names_of("click_tab", "heldout"):
        page = screen_of(name)
        line = page.text.splitlines()[page.element - 1]
        assert line == f'[{page.element}] a "{page.instruction.removeprefix("Click on ").rstrip(".")}"'


def test_stored_pages_are_of_tasks_that_no_run_has() -> None:
    assert tuple(PAGES) == GUI.families
    assert (TASKS_PER_FAMILY["train"], TASKS_PER_FAMILY["heldout"]) == (TRAINED_TASKS, HELDOUT_TASKS)
    for family in GUI.families:
        for split in ("train", "heldout"):
            names = names_of(family, split)
            assert len(names) > 0.8 * PAGES[family][split]
            for name in names:
                assert parse_name(name)[0] == family
                assert int(name.split("/")[-1]) >= FIRST_NUMBER > TRAINED_TASKS
    assert GUI.task("click_tab", "heldout", 7) == "miniwob/click_tab/heldout/7"


def test_pool_and_trainer_are_told_that_the_agent_reads_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(GUI, tmp_path / "model", tmp_path, 2, 0, False, Sizes(prompts=1, samples=2, heldout=1))
    told: list[Mapping[str, str]] = []

    def pool(words: Sequence[str], log: Path, stack: ExitStack, environment: Mapping[str, str]) -> str:
        told.append(environment)
        return "http://127.0.0.1:1"

    class Trainer:
        def __init__(self, command: Sequence[str], *, env: Mapping[str, str], **_: Any) -> None:
            told.append(env)

        def stop(self, seconds: float) -> None: ...

    monkeypatch.setattr(training, "start_pool", pool)
    monkeypatch.setattr(training, "spawn", Trainer)
    with ExitStack() as stack:
        start_training(plan, stack)
    assert len(told) == 2
    for environment in told:
        settings = GuiSettings.from_env(environment)
        assert (settings.pictures, settings.text) == (False, True)
