"""The suite ``shell``: generated tasks of `agentrl.tasks.shell` that the model solves with the tools bash and write_file.

Guarantees: commands run in the sandbox of the task's environment, and the verdict is made in another one that the model never
was in. Tasks are of the split ``heldout``, which nothing here trains on.
"""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Sequence
from random import Random
from typing import ClassVar, cast

from agentrl.environment import Task
from agentrl.exceptions import InfraError, InvalidError
from agentrl.protocol import JsonObject
from agentrl.tasks.shell.environment import ShellEnvironment
from agentrl.tasks.shell.families import EASY, FAMILIES, NEEDS
from agentrl.tasks.shell.generate import SEEDS_PER_SPLIT, task_name
from evaluation.case import Case, Grade, SuiteError
from evaluation.code_box import CodeBox
from evaluation.talk import Talk
from evaluation.tool_turns import MalformedCall, converse
from groundwork.chat_messages import Message

MOST_REPLIES = 20
COMMAND_S = 30
"""Longest time limit of a command; a model may ask for less."""
PARALLEL = 4
MALFORMED = ("invalid_action", "unknown_tool", "invalid_arguments")


class Shell:
    """See `evaluation.case.Suite`. A case is one task; the easy families have level 1, the others level 2."""

    name = "shell"
    environment: ClassVar[type[ShellEnvironment]] = ShellEnvironment

    def __init__(self, box: CodeBox) -> None:
        self.box = box
        self._places = asyncio.Semaphore(PARALLEL)

    def cases(self, seed: int, count: int) -> Sequence[Case]:
        """Return tasks of all families in turn."""
        families = list(FAMILIES)
        found: list[Case] = []
        for number in range(count):
            family = families[(seed * count + number) % len(families)]
            task = task_name(family, "heldout", Random(f"shell/{family}/{seed}/{number}").randrange(SEEDS_PER_SPLIT))
            found.append(Case(self.name, family, 1 if family in EASY else 2, seed, number, task))
        return found

    async def open(self) -> None:
        """Prove the sandbox.

        Raises:
            SuiteError: there is none, or a program that the tasks need is missing.
        """
        missing = sorted({program for program in NEEDS.values() if shutil.which(program) is None})
        if missing:
            raise SuiteError(f"its tasks need {', '.join(missing)}; install it, or leave the suite out")
        await self.box.open()

    async def play(self, case: Case, talk: Talk) -> Grade:
        """Let the model solve the task, and judge what it left."""
        async with self._places:
            environment = self._environment()
            try:
                return await self._episode(environment, case, talk)
            except InfraError as error:
                raise SuiteError(f"a sandbox failed: {error}") from error
            finally:
                await environment.close()

    async def close(self) -> None:
        """End the sandboxes."""
        await self.box.close()

    def _environment(self) -> ShellEnvironment:
        boxed = type("Boxed", (self.environment,), {"provider": self.box.provider})
        return boxed(self.box.processes)

    def most_replies(self) -> int:
        """Return the bound on a case's replies after the first."""
        return MOST_REPLIES

    async def _episode(self, environment: ShellEnvironment, case: Case, talk: Talk) -> Grade:
        opening = await environment.reset(Task(case.problem), case.seed)

        async def carry_out(call: Message) -> str:
            try:
                return (await environment.step(_action(call))).observation.text
            except InvalidError as error:
                if error.code in MALFORMED:
                    raise MalformedCall(str(error)) from None
                return f"error: {error}"

        system, offered = str(opening.data["system"]), cast(list[JsonObject], opening.data["tools"])
        said = await talk.ask(opening.text, system=system, tools=offered)
        ended = await converse(talk, said, offered, carry_out, self.most_replies())
        verdict = await environment.evaluate()
        if verdict.status == "infra_error":
            raise SuiteError(f"the verifier of {case.problem} failed: {verdict.detail}")
        if verdict.score == 1.0:
            return Grade(malformed_calls=ended.malformed)
        never_called = all(message["role"] != "tool" for message in talk.messages)
        reason = ended.bound or ended.said.defect or ("no_call" if never_called else "wrong_state")
        return Grade(reason, verdict.detail, ended.malformed)


def _action(call: Message) -> JsonObject:
    """Return a call as an action of the environment, with its time limit bounded.

    Raises:
        MalformedCall: the arguments are no JSON object.
    """
    try:
        arguments = json.loads(call["function"]["arguments"])
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        raise MalformedCall("the arguments are no JSON object")
    limit = arguments.get("timeout_s")
    if isinstance(limit, int | float) and limit > COMMAND_S:
        arguments["timeout_s"] = float(COMMAND_S)
    return {"tool": call["function"]["name"], "arguments": arguments}
