"""Desktop tasks without a display: names and splits, verdicts, variables, orders, and a desktop that is a stand-in."""

from __future__ import annotations

import asyncio
import base64
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agentrl.environment import Task
from agentrl.exceptions import InfraError, InvalidError
from agentrl.sandbox.streams import LINE_BYTES
from agentrl.tasks.gui.actions import read_call
from agentrl.tasks.gui.desktop import environment as desktop_environment
from agentrl.tasks.gui.desktop import screen
from agentrl.tasks.gui.desktop.environment import DesktopEnvironment
from agentrl.tasks.gui.desktop.screen import Desktop, installed
from agentrl.tasks.gui.desktop.windows import FAMILIES, TASKS_PER_FAMILY, WindowTask, task_name, window_task
from agentrl.tasks.gui.inside.hands import carry_out, prepare
from agentrl.tasks.gui.miniwob.environment import MiniWobEnvironment
from agentrl.tasks.gui.orders import order_of
from agentrl.tasks.gui.osworld.vm import PROGRAM
from agentrl.tasks.gui.source import GuiSource
from agentrl.tasks.names import SPLITS
from groundwork.exceptions import ConfigError
from tests.helpers.gui_agents import gui_environment, use
from tests.helpers.pictures import picture, png

QUOTED = re.compile(r'"([^"]*)"')
ELEMENT = {"tag": "button", "text": "Save", "name": "", "hint": "", "states": [], "x": 30, "y": 20}
PICTURE = base64.b64encode(png(picture(640, 480))).decode()
BOX = {"left": 0, "top": 0, "width": 60, "height": 40}


def all_tasks() -> Iterator[tuple[str, str, WindowTask]]:
    for family in FAMILIES:
        for split in SPLITS:
            for number in range(TASKS_PER_FAMILY[split]):
                yield family, split, window_task(task_name(family, split, number))


def begun(task: WindowTask) -> dict[str, Any]:
    """Return what a window says of itself at its start."""
    fields: Any = task.window["fields"]
    values = {
        field["name"]: dict.fromkeys(field["value"]) if field["kind"] == "board" else field["value"] for field in fields
    }
    return {"values": values, "pressed": None, "elements": []}


def test_what_held_out_tasks_ask_for_is_in_no_task_for_training() -> None:
    asked: dict[str, set[str]] = {split: set() for split in SPLITS}
    for _, split, task in all_tasks():
        asked[split] |= set(QUOTED.findall(task.instruction))
    assert not asked["train"] & asked["heldout"]
    assert min(map(len, asked.values())) > 20


def test_a_task_is_its_name_and_begins_unsolved() -> None:
    for family, _, task in all_tasks():
        state = begun(task)
        assert task.verdict(state).score == 0, family
        assert task.verdict({**state, "pressed": task.button}).score == 0, family
        assert set(state["values"]) == set(task.values)
    name = task_name("sort_cards", "train", 7)
    assert window_task(name) == window_task(name) != window_task(task_name("sort_cards", "train", 8))
    for wrong in ("desktop/fly/train/0", "desktop/sort_cards/test/0", "miniwob/click_test/train/0"):
        with pytest.raises(ConfigError, match="write desktop/FAMILY/SPLIT/NUMBER"):
            window_task(wrong)


def test_a_verdict_wants_every_field_and_the_button() -> None:
    task = window_task(task_name("fill_form", "train", 0))
    done = {"values": dict(task.values), "pressed": "Save"}
    verdict = task.verdict(done)
    assert (verdict.status, verdict.score, verdict.passed, verdict.total) == ("ok", 1.0, 4, 4)
    for wrong in (
        {**done, "pressed": None},
        {**done, "pressed": "Discard"},
        {**done, "values": {**task.values, "Phone": "1"}},
        {**done, "values": {**task.values, "Name": str(task.values["Name"]).lower()}},
    ):
        verdict = task.verdict(wrong)
        assert (verdict.status, verdict.score, verdict.passed) == ("task_failed", 0.0, 3)


def test_the_variables_choose_the_desktop() -> None:
    for given, name, driver in (
        ({}, "miniwob", "playwright"),
        ({"SCREENSHOT_BACKEND": "selenium"}, "miniwob", "selenium"),
        ({"SCREENSHOT_BACKEND": "pyautogui"}, "desktop", "pyautogui"),
        ({"TASK_TYPE": "desktop"}, "desktop", "pyautogui"),
        ({"TASK_TYPE": "osworld", "SCREENSHOT_BACKEND": "pyautogui"}, "osworld", "pyautogui"),
    ):
        source = GuiSource.from_env(given)
        assert (source.name, source.driver) == (name, driver), given
    source = GuiSource.from_env({"TASK_TYPE": "desktop", "GUI_FAMILIES": "fill-form, write_note"})
    assert len(source.ids("train")) == 2 * TASKS_PER_FAMILY["train"]
    assert source.ids("heldout")[:2] == ["desktop/fill_form/heldout/0", "desktop/write_note/heldout/0"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"TASK_TYPE": "miniwob", "SCREENSHOT_BACKEND": "pyautogui"},
            "use playwright or selenium, or set TASK_TYPE=desktop",
        ),
        ({"TASK_TYPE": "desktop", "SCREENSHOT_BACKEND": "selenium"}, "use pyautogui, or set TASK_TYPE=miniwob"),
        ({"TASK_TYPE": "desktop", "GUI_FAMILIES": "click_test"}, "no family click_test; write some of fill_form"),
        ({"SCREENSHOT_BACKEND": "scrot"}, "use one of playwright, selenium, pyautogui"),
    ],
)
def test_variables_that_do_not_fit(given: dict[str, str], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        GuiSource.from_env(given).ids("train")


def test_a_pool_for_other_screens_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCREENSHOT_BACKEND", "pyautogui")
    with pytest.raises(ConfigError, match="SCREENSHOT_BACKEND=pyautogui cannot drive"):
        MiniWobEnvironment.tasks()
    monkeypatch.setenv("SCREENSHOT_BACKEND", "selenium")
    with pytest.raises(ConfigError, match="SCREENSHOT_BACKEND=selenium cannot drive"):
        DesktopEnvironment.tasks()


def test_a_machine_without_a_display_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("bash", "dirname"):
        (tmp_path / name).symlink_to(shutil.which(name) or "")
    installed.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ConfigError, match=r"not found on this machine: Xvfb, which desktop tasks need; run bash scripts/setup_d"
    ):
        DesktopEnvironment.tasks()


def test_the_set_up_refuses_words_that_it_does_not_know() -> None:
    done = subprocess.run([screen.SETUP, "--chek"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (2, "setup_desktop: unknown argument '--chek'; see --help\n")


class Hands:
    """A pyautogui that notes its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.platformModule = SimpleNamespace(keyboardMapping={",": 59, "<": 94})

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **named: self.calls.append((name, *values, *named.items()))


@pytest.mark.parametrize(
    ("action", "calls"),
    [
        (use("double_click"), [("moveTo", 3, 4), ("click", ("button", "left"), ("clicks", 2), ("interval", 0))]),
        (use("mouse_move"), [("moveTo", 3, 4)]),
        (use("scroll", pixels=-10), [("moveTo", 3, 4), ("vscroll", -1)]),
        (use("hscroll", pixels=100), [("moveTo", 3, 4), ("hscroll", 2)]),
        (use("type", text="a\r\nb"), [("write", "a\nb", ("interval", 0))]),
        (use("type", text="ü"), [("paste", "ü")]),
        (use("key", keys=["Control", "S"]), [("keyDown", "ctrl"), ("keyDown", "s"), ("keyUp", "s"), ("keyUp", "ctrl")]),
        (
            use("left_click_drag"),
            [("moveTo", 1, 2), ("dragTo", 3, 4, ("duration", 0.2), ("button", "left"))],
        ),
    ],
)
def test_an_action_is_these_calls_of_pyautogui(action: Any, calls: list[Any]) -> None:
    arguments = action["arguments"]
    if arguments["action"] not in ("type", "key"):
        arguments["coordinate"] = [0, 0]
    hands = Hands()
    dragged = arguments["action"] == "left_click_drag"
    point, start = (3.9, 4.2) if "coordinate" in arguments else None, (1.5, 2.0) if dragged else None
    order = json.loads(json.dumps(order_of(read_call(action), point, start)))
    carry_out(order, hands, lambda text: hands.calls.append(("paste", text)), calm=0)
    assert hands.calls == calls


def test_pyautogui_is_mended_and_machines_get_the_same_hands() -> None:
    hands = Hands()
    prepare(hands, 0.5)
    assert (hands.FAILSAFE, hands.PAUSE, hands.platformModule.keyboardMapping["<"]) == (False, 0.5, 59)
    compile(PROGRAM, "program", "exec")
    assert "def carry_out(" in PROGRAM


class Stream:
    """The stream of a program that printed a line and ended."""

    async def ended(self) -> str:
        return "Xvfb did not start"


class Writer:
    def __init__(self) -> None:
        self.sent: list[Any] = []

    def write(self, data: bytes) -> None:
        self.sent.append(json.loads(data))


def stand_in(*answers: Any) -> tuple[Desktop, Writer]:
    """Return a desktop whose program gives these answers, and then ends; and what it is sent."""
    reader, writer = asyncio.StreamReader(LINE_BYTES), Writer()
    for answer in answers:
        reader.feed_data(json.dumps(answer).encode() + b"\n")
    reader.feed_eof()
    return Desktop(Stream(), reader, writer), writer  # type: ignore[arg-type]


def shows(values: Any, pressed: str | None = None) -> dict[str, Any]:
    return {"png": PICTURE, "state": {"values": values, "pressed": pressed, "elements": [{**ELEMENT, **BOX}]}}


async def test_an_action_is_sent_once_and_elements_have_numbers() -> None:
    desktop, writer = stand_in(*[shows({})] * 2)
    look = await desktop.look(png=False, text=True)
    assert (look.png, look.text) == (None, '[1] button "Save"')
    with pytest.raises(InvalidError, match="there is no element 2; the screen has 1"):
        await desktop.act(read_call(use("left_click", element=2)), None, None)
    await desktop.act(read_call(use("left_click", element=1)), None, None)
    await desktop.act(read_call(use("wait", time=0)), None, None)
    assert [sent["order"] and sent["order"]["point"] for sent in writer.sent] == [None, [30, 20]]
    with pytest.raises(InfraError, match="the desktop is gone: Xvfb did not start"):
        await desktop.look(png=True, text=False)


async def test_an_episode_ends_with_a_button_or_the_agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = window_task(task_name("fill_form", "train", 0))
    first, last = begun(task)["values"], dict(task.values)
    made: list[Writer] = []

    async def opened(provider: object, processes: object, window: object) -> Desktop:
        assert window == task.window
        desktop, writer = stand_in(shows(first), shows(last, "Save"), shows(last, "Save"), shows(last, "Save"))
        made.append(writer)
        return desktop

    monkeypatch.setattr(desktop_environment.Desktop, "open", opened)
    async with gui_environment(tmp_path, DesktopEnvironment) as environment:
        with pytest.raises(InfraError, match="has not begun"):
            await environment.evaluate()
        seen = await environment.reset(Task(task_name("fill_form", "train", 0)), 0)
        assert (seen.text, len(seen.images)) == (f"Task: {task.instruction}", 1)
        assert seen.data["actions"] == "computer_use"
        result = await environment.step(use("left_click", coordinate=[500, 500]))
        assert result.done
        assert (await environment.evaluate()).score == 1.0
        assert [sent["order"] and sent["order"]["what"] for sent in made[0].sent] == [None, "click", None, None]
        await environment.reset(Task(task_name("fill_form", "train", 0)), 0)
        assert (await environment.step(use("terminate", status="failure"))).done
        assert len(made) == 2
