"""The suite ``shell``: generated tasks of `agentrl.tasks.shell` that the model solves with the tools bash and write_file.

Guarantees: commands run in the sandbox of the task's environment, and the verdict is made in another one that the model never
was in. Tasks are of the split ``heldout``, which nothing here trains on.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Sequence
from random import Random
from typing import ClassVar

from agentrl.environment import Task
from agentrl.exceptions import AgentError
from agentrl.protocol import JsonObject, StepResult
from agentrl.rollout.chat_policy import Unpooled
from agentrl.tasks.names import SEEDS_PER_SPLIT
from agentrl.tasks.shell.environment import ShellEnvironment
from agentrl.tasks.shell.families import EASY, FAMILIES, NEEDS
from agentrl.tasks.shell.generate import task_name
from evaluation.case import Case, Grade, SuiteError
from evaluation.code_box import CodeBox
from evaluation.talk import Talk
from evaluation.tool_turns import converse

MAX_REPLIES = 20
COMMAND_SECONDS = 30
"""Longest time limit of a command; a model may ask for less."""
PARALLEL = 4


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
        results: list[Case] = []
        for number in range(count):
            family = families[(seed * count + number) % len(families)]
            task = task_name(family, "heldout", Random(f"shell/{family}/{seed}/{number}").randrange(SEEDS_PER_SPLIT))
            results.append(Case(self.name, family, 1 if family in EASY else 2, seed, number, task))
        return results

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
            except AgentError as error:
                raise SuiteError(f"a sandbox failed: {error}") from error
            finally:
                await environment.close()

    async def close(self) -> None:
        """End the sandboxes."""
        await self.box.close()

    def _environment(self) -> ShellEnvironment:
        base, chosen = self.environment, self.box.provider

        class Boxed(base):
            provider = chosen

            async def step(self, action: JsonObject) -> StepResult:
                return await super().step(_bounded(action))

        return Boxed(self.box.processes)

    def most_replies(self) -> int:
        """Return the bound on a case's replies after the first."""
        return MAX_REPLIES

    async def _episode(self, environment: ShellEnvironment, case: Case, talk: Talk) -> Grade:
        ended = await converse(talk, Unpooled(environment, Task(case.problem)), self.most_replies())
        verdict = ended.verdict
        if verdict is None or verdict.status == "infra_error":
            raise SuiteError(f"the verifier of {case.problem} failed: {verdict.detail if verdict else 'no reply'}")
        if verdict.score == 1.0:
            return Grade(malformed_calls=ended.malformed)
        never_called = all(message["role"] != "tool" for message in talk.messages)
        reason = ended.bound or ended.said.defect or ("no_call" if never_called else "wrong_state")
        return Grade(reason, verdict.detail, ended.malformed)


def _bounded(action: JsonObject) -> JsonObject:
    """Return a call with its time limit bounded."""
    arguments = action.get("arguments")
    limit = arguments.get("timeout_s") if isinstance(arguments, dict) else None
    if isinstance(arguments, dict) and isinstance(limit, int | float) and limit > COMMAND_SECONDS:
        return {**action, "arguments": {**arguments, "timeout_s": float(COMMAND_SECONDS)}}
    return action
