"""Calls of ``computer_use``: what is read, what is refused, and where a point lies on the screen."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentrl.exceptions import InvalidError
from agentrl.tasks.gui.actions import ACTIONS, Action, read_arguments, read_call
from agentrl.tasks.gui.coordinates import COORDINATE_TYPES, CoordinateType, from_screen, on_screen, space
from agentrl.tasks.gui.dom import Element, as_text
from agentrl.tasks.gui.keys import key_of, needs_shift
from agentrl.tasks.gui.tool import computer_use

GOOD: list[tuple[dict[str, Any], Action]] = [
    ({"action": "left_click", "coordinate": [10, 20.5]}, Action("left_click", point=(10.0, 20.5))),
    ({"action": "double_click"}, Action("double_click")),
    ({"action": "triple_click", "element": 3}, Action("triple_click", element=3)),
    (
        {"action": "left_click_drag", "coordinate": [1, 2], "start_coordinate": [3, 4]},
        Action("left_click_drag", point=(1.0, 2.0), start=(3.0, 4.0)),
    ),
    ({"action": "hscroll", "pixels": -30, "coordinate": [1, 1]}, Action("hscroll", point=(1.0, 1.0), pixels=-30)),
    ({"action": "key", "keys": ["ctrl", "a"]}, Action("key", keys=("ctrl", "a"))),
    ({"action": "key", "keys": "enter"}, Action("key", keys=("enter",))),
    ({"action": "type", "text": 'a\n"b"\');import os'}, Action("type", text='a\n"b"\');import os')),
    ({"action": "wait", "time": 0.5}, Action("wait", seconds=0.5)),
    ({"action": "terminate", "status": "failure"}, Action("terminate", status="failure")),
]
BAD: list[tuple[dict[str, Any], str]] = [
    ({}, "there is no action"),
    ({"action": "fly"}, "there is no action 'fly'"),
    ({"action": "left_click", "coordinate": [1]}, "two numbers"),
    ({"action": "left_click", "coordinate": "1, 2"}, "two numbers"),
    ({"action": "left_click", "coordinate": [1, True]}, "two numbers"),
    ({"action": "left_click", "coordinate": [1, float("nan")]}, "two numbers"),
    ({"action": "left_click", "coordinate": [1, 2], "element": 1}, "not both"),
    ({"action": "left_click", "element": 0}, "number of an element"),
    ({"action": "left_click", "text": "x"}, "takes no text"),
    ({"action": "mouse_move"}, "needs coordinate or element"),
    ({"action": "left_click_drag"}, "needs coordinate or element"),
    ({"action": "scroll", "coordinate": [1, 2]}, "needs pixels"),
    ({"action": "scroll", "pixels": 1e9}, "pixels is a number"),
    ({"action": "key"}, "needs keys"),
    ({"action": "key", "keys": ["no_such_key"]}, "no key"),
    ({"action": "key", "keys": []}, "1 to 4"),
    ({"action": "type", "text": 5}, "text is a string"),
    ({"action": "wait", "time": -1}, "time is a number"),
    ({"action": "terminate"}, "needs status"),
    ({"action": "terminate", "status": "done"}, "success or failure"),
]


@pytest.mark.parametrize(("arguments", "read"), GOOD)
def test_a_call_is_read(arguments: dict[str, Any], read: Action) -> None:
    assert read_call({"tool": "computer_use", "arguments": arguments}) == read


@pytest.mark.parametrize(("arguments", "why"), BAD)
def test_a_call_that_makes_no_sense_is_refused(arguments: dict[str, Any], why: str) -> None:
    with pytest.raises(InvalidError, match=why):
        read_arguments(arguments)


@pytest.mark.parametrize("action", [{"text": "click"}, {"tool": "bash", "arguments": {}}, {"tool": "computer_use"}])
def test_what_is_no_call_is_refused(action: dict[str, Any]) -> None:
    with pytest.raises(InvalidError, match="this is not an action"):
        read_call(action)


json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text() | st.integers(), lambda inner: st.lists(inner, max_size=3)
)


@given(st.dictionaries(st.sampled_from(["coordinate", "keys", "text", "time", "element", "pixels", "x"]), json_values))
def test_nothing_but_an_action_or_a_refusal(arguments: dict[str, Any]) -> None:
    for name in ACTIONS:
        with suppress(InvalidError):
            assert read_arguments({"action": name, **arguments}).name == name


@pytest.mark.parametrize(
    ("kind", "columns", "rows"), [("relative", 1000, 1000), ("absolute", 1920, 1080), ("qwen25", 1316, 728)]
)
def test_the_three_kinds_of_coordinates(kind: CoordinateType, columns: int, rows: int) -> None:
    picture = (1920, 1080)
    assert space(kind, picture) == (columns, rows)
    x, y = on_screen((columns - 1, 0), kind, picture, (960, 540))
    assert 960 - 960 / columns <= x < 960
    assert 0 < y <= 540 / rows
    for point in ((columns, 0), (0, rows), (-1, 0)):
        with pytest.raises(InvalidError, match="not on the screen"):
            on_screen(point, kind, picture, (960, 540))


@given(st.sampled_from(COORDINATE_TYPES), st.floats(0, 159), st.floats(0, 209))
def test_a_point_survives_the_way_to_the_model_and_back(kind: CoordinateType, x: float, y: float) -> None:
    picture, screen = (320, 420), (160, 210)
    columns, rows = space(kind, picture)
    back = on_screen((*from_screen((x, y), kind, picture, screen),), kind, picture, screen)  # type: ignore[arg-type]
    assert abs(back[0] - x) <= screen[0] / columns
    assert abs(back[1] - y) <= screen[1] / rows


def test_keys_by_all_their_names() -> None:
    assert {key_of(name) for name in ("enter", "Return", "KP_Enter")} == {key_of("ENTER")}
    names = {"ctrl": "Control", "Escape": "Escape", "pagedown": "PageDown", "ArrowUp": "ArrowUp", "cmd": "Meta"}
    for name, key in names.items():
        found = key_of(name)
        assert found is not None
        assert found.key == key
    digit = key_of("%")
    assert digit is not None
    assert (digit.code, digit.text, needs_shift("%"), needs_shift("5")) == ("Digit5", "%", True, False)
    assert key_of("ab") is None
    assert key_of("") is None


def test_the_tool_says_where_points_lie_and_names_elements_only_where_they_have_numbers() -> None:
    without = computer_use("absolute", (320, 420), elements=False)["function"]
    assert isinstance(without, dict)
    assert "x from 0 (left) to 319 (right) and y from 0 (top) to 419" in str(without)
    assert "element" not in str(without["parameters"])
    assert "element" in str(computer_use("relative", (320, 420), elements=True))


def test_a_page_as_text() -> None:
    button = Element("button", "Ok", "", "subbtn", None, ("focused",), "", 5, 5, (0, 0, 10, 10))
    field = Element("input(text)", "", "Name", "who", "Bob", (), "", 5, 5, (0, 0, 10, 10))
    shape = Element("circle", "", "", "", None, (), "red", 5, 5, (0, 0, 10, 10))
    assert as_text([button, field, shape]).splitlines() == [
        '[1] button "Ok" focused',
        '[2] input(text) named "Name" value "Bob" (who)',
        "[3] circle color red",
    ]
    assert as_text([]) == "(nothing is visible)"
