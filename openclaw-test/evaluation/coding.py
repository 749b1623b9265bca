"""The suite ``coding``: generated functions with hidden tests, run in the sandbox of `evaluation.code_box`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from evaluation.case import Case, Family, Grade, draw_cases
from evaluation.code_box import CodeBox, same
from evaluation.coding_numbers import NUMBERS
from evaluation.coding_problem import Problem
from evaluation.coding_text import TEXT
from evaluation.talk import Talk

FAMILIES: dict[str, Family] = {family.__name__: family for family in (*NUMBERS, *TEXT)}
BLOCK = re.compile(r"```[\w+-]*[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)


class Coding:
    """See `evaluation.case.Suite`."""

    name = "coding"

    def __init__(self, box: CodeBox) -> None:
        self.box = box

    def cases(self, seed: int, count: int) -> Sequence[Case]:
        """Return problems of all families and levels."""
        return draw_cases(self.name, FAMILIES, seed, count)

    async def open(self) -> None:
        """Prove the sandbox."""
        await self.box.open()

    async def play(self, case: Case, talk: Talk) -> Grade:
        """Ask for the function and run it on the hidden inputs."""
        problem: Problem = case.problem
        said = await talk.ask(problem.text)
        if said.defect == "empty":
            return Grade(said.defect)
        code = code_of(said.text, problem.name)
        if code is None:
            return Grade(said.defect or "no_code", f"the reply has no code block and no function {problem.name}")
        ran = await self.box.run(code, problem.name, [given for given, _ in problem.hidden])
        if ran.reason:
            # Half a program does not compile; what to mend is the length.
            return Grade(said.defect or ran.reason, ran.detail)
        wrong = [
            (given, expected, found)
            for (given, expected), found in zip(problem.hidden, ran.results, strict=True)
            if not same(expected, found)
        ]
        if not wrong:
            return Grade()
        given, expected, found = wrong[0]
        shown = f"{problem.name}({', '.join(map(repr, given))}) is {expected!r}, not {repr(found)[:200]}"
        return Grade("wrong_result", f"{len(wrong)} of {len(problem.hidden)} hidden tests fail: {shown}")

    async def close(self) -> None:
        """End the sandboxes."""
        await self.box.close()


def code_of(reply: str, name: str) -> str | None:
    """Return the first code block that defines a function, or the first block, or a reply that is code; None without code."""
    blocks = BLOCK.findall(reply)
    definition = re.compile(rf"^def {name}\(", re.MULTILINE)
    defining = [text for text in (*blocks, reply) if definition.search(text)]
    return next(iter([*defining, *blocks]), None)
