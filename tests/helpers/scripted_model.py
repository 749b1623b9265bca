"""Models that follow a script, behind the interface of OpenAI's client, and oracles for the suites of `evaluation`."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable, Sequence
from types import SimpleNamespace
from typing import Any

from evaluation.case import Case
from evaluation.coding import Problem
from evaluation.conversation import Facts, Form, Rule
from evaluation.talk import Policy, Talk

from agentrl.tasks.harbor import SOLUTION
from agentrl.tasks.shell.generate import generate

Messages = list[dict[str, Any]]
Call = tuple[str, Any]
"""Name of a tool and its arguments: an object, or text as the model would write it."""
Reply = str | Sequence[Call]
Script = Callable[[Messages], Reply]
PARTS = ("begin", "end", "length", "questions", "marks", "shape", "commas", "case", "whole")
"""The order in which `Rule.solution` keeps what the earlier ones did."""


class ScriptedClient:
    """Answers each request by a script; ``finish_reason`` is that of every reply without calls."""

    base_url = "http://model.test/v1/"

    def __init__(self, script: Script, finish_reason: str = "stop") -> None:
        self.script = script
        self.finish_reason = finish_reason
        self.requests: list[dict[str, Any]] = []
        self.chat = SimpleNamespace(completions=self)
        self.models = SimpleNamespace(list=self._models)

    async def __aenter__(self) -> ScriptedClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        return None

    def with_options(self, **_: object) -> ScriptedClient:
        return self

    async def _models(self) -> AsyncIterator[Any]:
        yield SimpleNamespace(id="scripted")

    async def create(self, **fields: Any) -> Any:
        self.requests.append(fields)
        await asyncio.sleep(0)
        reply = self.script(fields["messages"])
        calls = [
            SimpleNamespace(
                id=f"call-{len(self.requests)}-{number}",
                type="function",
                function=SimpleNamespace(name=name, arguments=given if isinstance(given, str) else json.dumps(given)),
            )
            for number, (name, given) in enumerate([] if isinstance(reply, str) else reply)
        ]
        message = SimpleNamespace(content=reply if isinstance(reply, str) else "", tool_calls=calls or None)
        choice = SimpleNamespace(message=message, finish_reason="tool_calls" if calls else self.finish_reason)
        return SimpleNamespace(choices=[choice], usage=SimpleNamespace(completion_tokens=7))


def policy_of(script: Script, finish_reason: str = "stop", **settings: Any) -> Policy:
    """Return a policy that follows a script."""
    client: Any = ScriptedClient(script, finish_reason)
    return Policy(client, "scripted", settings.pop("max_tokens", 64), **settings)


def talk_of(script: Script, finish_reason: str = "stop") -> Talk:
    """Return a conversation with a script."""
    return policy_of(script, finish_reason).talk("session")


def in_form(rules: Sequence[Rule]) -> str:
    """Return a reply that follows rules."""
    text = "Yes indeed."
    for rule in sorted(rules, key=lambda each: PARTS.index(each.part)):
        text = rule.solution(text)
    return text


def results(messages: Messages) -> list[str]:
    """Return what the tools have returned since the user spoke."""
    return [message["content"] for message in messages if message["role"] == "tool"]


def oracle(case: Case) -> Script:
    """Return a script that solves a case."""
    makers: dict[str, Callable[[Case], Script]] = {
        "conversation": _conversation,
        "coding": _coding,
        "tool-use": _tool_use,
        "shell": _shell,
        "terminal": _shell,
        "retention": lambda case: lambda messages: f"Let me see: {case.problem.answer + 1}, no, {case.problem.answer}.",
    }
    return makers[case.suite](case)


def _conversation(case: Case) -> Script:
    if isinstance(case.problem, Form):
        return lambda messages: in_form(case.problem.rules)
    if isinstance(case.problem, Facts):
        return lambda messages: f"It is {' in '.join(case.problem.wanted)}."
    return lambda messages: "1. **7**" if len(messages) == 1 else "That makes 7."


def _coding(case: Case) -> Script:
    problem: Problem = case.problem
    return lambda messages: f"Here it is:\n```python\n{problem.solution}```\nDone."


def _shell(case: Case) -> Script:
    script = generate(case.problem).solution[SOLUTION].data.decode()
    return lambda messages: "Done." if results(messages) else [("bash", {"command": script})]


def _tool_use(case: Case) -> Script:
    return {"calculate": _calculate, "look_up": _look_up, "chain": _chain, "state": _state}.get(
        case.family, lambda messages: "You are welcome."
    )


def _calculate(messages: Messages) -> Reply:
    if found := results(messages):
        return f"The result is {found[0]}."
    asked = re.findall(r"What is (.*)\?", messages[0]["content"])
    return [("calculator", {"expression": asked[0]})]


def _look_up(messages: Messages) -> Reply:
    if found := results(messages):
        return f"Together that is {sum(map(int, found))}."
    items = re.findall(r"one (\w+)", messages[0]["content"])
    return [("price", {"item": item}) for item in items]


def _chain(messages: Messages) -> Reply:
    found = [text for text in results(messages) if not text.startswith("error: busy")]
    if not found:
        return [("customer_number", {"name": re.findall(r"customer (\w+) waiting", messages[0]["content"])[0]})]
    return [("waiting_parcels", {"customer": int(found[0])})] if len(found) == 1 else f"{found[1]} parcels."


def _state(messages: Messages) -> Reply:
    text, found = messages[0]["content"], results(messages)
    if set_to := re.findall(r"Set the value (\w+) to (\d+)", text):
        return "Done." if found else [("write_value", {"name": set_to[0][0], "value": int(set_to[0][1])})]
    first, second = re.findall(r"values? (\w+) (?:to|and) (\w+)", text)[0]
    if not found:
        return [("read_value", {"name": first}), ("read_value", {"name": second})]
    if len(found) > 2:
        return "Done."
    writes: list[Call] = [("write_value", {"name": second, "value": int(found[0])})]
    return [*writes, ("write_value", {"name": first, "value": int(found[1])})] if "Swap" in text else writes
