"""Tools: strict arguments, counted malformed calls, answers that need the call, and what cannot be talked into passing."""

from __future__ import annotations

import json
from typing import Any

import pytest
from evaluation.case import Case
from evaluation.tool_turns import MAX_CALLS, MalformedCall
from evaluation.tool_use import MAX_REPLIES, TOOL_USE
from evaluation.tool_worlds import TOOLS, World, calculate

from tests.helpers.scripted_model import Reply, oracle, results, talk_of


def case_of(family: str, level: int = 1) -> Case:
    return next(case for case in TOOL_USE.cases(0, 60) if (case.family, case.level) == (family, level))


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("fly", "{}", "there is no tool 'fly'; use one of calculator, waiting_parcels"),
        ("price", '{"item": "lamp"}', "there is no tool 'price'"),
        ("calculator", "[]", "arguments of calculator"),
        ("calculator", "{}", "expression: Field required"),
        ("calculator", '{"expression": 3}', "expression"),
        ("calculator", '{"expression": "1", "more": 1}', "more"),
        ("calculator", '{"expression": "2 ** 9999999"}', "is not an expression"),
        ("calculator", '{"expression": "__import__(\'os\')"}', "is not an expression"),
        ("calculator", '{"expression": "1 / 0"}', "is not an expression"),
        ("calculator", json.dumps({"expression": "(" * 199}), "is not an expression"),
        ("calculator", json.dumps({"expression": "9" * 150}), "more than 40 digits"),
        ("waiting_parcels", '{"customer": "17"}', "customer"),
    ],
)
def test_calls_that_make_no_sense(name: str, arguments: str, says: str) -> None:
    world = World(("calculator", "waiting_parcels"))
    with pytest.raises(MalformedCall) as refused:
        world.call(name, json.loads(arguments))
    assert says in str(refused.value)
    assert world.used == []


def test_calls_that_make_sense() -> None:
    world = World(tuple(TOOLS), prices={"lamp": 7}, values={"onyx": 1}, busy=1)  # type: ignore[arg-type]
    assert world.call("price", {"item": "Lamp"}) == "error: busy, call again"
    assert world.call("price", {"item": "Lamp"}) == "7"
    assert world.call("price", {"item": "rope"}) == "error: no item rope"
    assert world.call("write_value", {"name": "onyx", "value": -2}) == "written"
    assert world.call("read_value", {"name": "onyx"}) == "-2"
    assert calculate("-3 * (4 + 5)") == -27
    for tool in world.tools():
        assert tool["function"]["description"], tool  # type: ignore[index, call-overload]


async def test_a_right_answer_without_the_call_fails() -> None:
    case = case_of("calculate")
    grade = await TOOL_USE.play(case, talk_of(lambda messages: str(case.problem.answer)))
    assert grade.reason == "no_call"


async def test_a_malformed_call_is_counted_and_can_be_mended() -> None:
    case = case_of("calculate", 2)

    def mends(messages: list[dict[str, Any]]) -> Reply:
        if not results(messages):
            return [("calculator", '{"expression": ')]
        return oracle(case)([each for each in messages if not str(each["content"]).startswith('{"error"')])

    talk = talk_of(mends)
    grade = await TOOL_USE.play(case, talk)
    assert (grade.passed, grade.malformed_calls) == (True, 1)
    assert "the arguments of calculator are not a JSON object" in results(talk.messages)[0]


async def test_calls_that_the_server_could_not_read_are_counted() -> None:
    text = '<tool_call>\n{"name": "calculator", "arguments": {"expression": }\n</tool_call>'
    grade = await TOOL_USE.play(case_of("calculate"), talk_of(lambda messages: text))
    assert (grade.reason, grade.malformed_calls) == ("malformed_call", 1)


async def test_a_call_where_none_is_needed_fails() -> None:
    case = case_of("restraint")
    script = oracle(case)
    needless = talk_of(
        lambda messages: script(messages) if results(messages) else [("calculator", {"expression": "1"})]
    )
    assert (await TOOL_USE.play(case, needless)).reason == "needless_call"


async def test_the_store_is_graded_and_not_what_is_said_about_it() -> None:
    case = case_of("state", 3)
    claims = talk_of(lambda messages: "Done." if results(messages) else [("read_value", {"name": "onyx"})])
    assert (await TOOL_USE.play(case, claims)).reason == "wrong_state"
    assert case.problem.world.used == []


async def test_endless_calls_end() -> None:
    case = case_of("look_up")
    talk = talk_of(lambda messages: [("price", {"item": "lamp"})])
    assert (await TOOL_USE.play(case, talk)).reason == "too_many_replies"
    assert len(results(talk.messages)) == MAX_REPLIES + 1
    talk = talk_of(lambda messages: [("price", {"item": "lamp"})] * (MAX_CALLS + 5))
    assert (await TOOL_USE.play(case, talk)).reason == "too_many_calls"
    assert len(results(talk.messages)) == MAX_CALLS + 1
    assert "no call is left" in results(talk.messages)[-1]
