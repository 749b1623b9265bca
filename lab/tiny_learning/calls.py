"""The tool-call agent: tasks of one short call each, and a look-up in a table that GRPO does not train on.

Of the careless agent's episodes a third makes the right call and gives the answer. In the others it answers without a call, asks
for the wrong thing, or forgets how an answer is written. What the tools answer is the tools' own work.
"""

from __future__ import annotations

from random import Random

from agentrl.exceptions import InvalidError
from agentrl.protocol import JsonObject
from agentrl.rollout.actions import error_text
from agentrl.sandbox.interface import Sandbox
from agentrl.tasks.toolcall.conversations import last_words
from agentrl.tasks.toolcall.draft import Draft
from agentrl.tasks.toolcall.environment import STEP_S
from agentrl.tasks.toolcall.generate import generate, task_name
from agentrl.tasks.toolcall.prompts import opening_data
from agentrl.tasks.toolcall.tools.builtin import PURE
from agentrl.tasks.toolcall.tools.interface import Room, World, described
from lab.tiny_learning.traces import Step, TaskSet, Trace, begun, call

RIGHT, GUESS, WRONG = 0.2, 0.28, 0.28
"""Shares of episodes that are right, answer without a call, or begin with a wrong call; the rest forgets how to answer."""
AGAIN = 0.25
"""Share of wrong calls after which the agent makes the right one."""
ENDED = "The task has ended."


def trace(rng: Random, task: str, careless: bool) -> Trace:
    """Return an episode of an agent on a task."""
    draft, kind = generate(task), rng.random() if careless else 0.0
    right = draft.calls[0]
    steps: list[Step] = []
    forgets = kind >= RIGHT + GUESS + WRONG
    called = kind < RIGHT or forgets
    if RIGHT + GUESS <= kind < RIGHT + GUESS + WRONG:
        wrong = _mistaken(right)
        steps.append(_called(draft, wrong, "The call asks for another thing.", good=False))
        called = rng.random() < AGAIN
    if called:
        steps.append(_called(draft, right, "The call is what the goal needs.", good=True))
    steps.append(_ending(rng, draft, called=called, forgets=forgets))
    tools = [described(PURE[name]) for name in draft.tools]
    return begun(draft.question, opening_data(draft, tools, "tool_calls", STEP_S), steps)


def _called(draft: Draft, action: JsonObject, reason: str, *, good: bool) -> Step:
    """Return a call with what its tool answers in the task's beginning."""
    tool, arguments = str(action["tool"]), action["arguments"]
    assert isinstance(arguments, dict)
    try:
        heard = PURE[tool].function(arguments, World(dict(draft.store), draft.tables, _no_sandbox))
    except InvalidError as error:
        heard = error_text(error.code, error.message)
    return Step(call(tool, arguments), heard, reason, good)


def _ending(rng: Random, draft: Draft, *, called: bool, forgets: bool) -> Step:
    """Return the last reply: right after the right call, unless the agent forgets how an answer is written."""
    if draft.answer is not None and forgets:
        return Step(f"It is {draft.answer.text}.", ENDED, "The answer is not written as asked.", good=False)
    if called:
        return Step(last_words(draft), ENDED, "The goal is reached.", good=True)
    text = "Done." if draft.answer is None else f"Answer: {rng.randrange(10, 100)}"
    return Step(text, ENDED, "There was no right call.", good=False)


def _mistaken(right: JsonObject) -> JsonObject:
    """Return a call for another thing: a name that goes on, or the other operation."""
    arguments = right["arguments"]
    assert isinstance(arguments, dict)
    if "expression" in arguments:
        return {**right, "arguments": {"expression": str(arguments["expression"]).replace("+", "-")}}
    name = "key" if "key" in arguments else "value"
    return {**right, "arguments": {**arguments, name: f"{arguments[name]}_value"}}


async def _no_sandbox(room: Room) -> Sandbox:
    raise AssertionError(f"the tools of these tasks need no sandbox {room}")


TOOLCALL = TaskSet(
    name="toolcall",
    environment="agentrl.tasks.toolcall.environment.ToolCallEnvironment",
    trained=("get_value", "set_value", "add_two"),
    unseen="price_of",
    task=task_name,
    trace=trace,
    needed=2,
)
