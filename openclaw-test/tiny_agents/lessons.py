"""What the tiny policy is taught: for each task two first calls, a right and a wrong one, and after either the last call.

Guarantee: the program's own verifier has judged both: the right call scores 1, the wrong one 0. The prompts are those that the
program sends, so the policy meets them again in training.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentrl.harness.interface import Harness
from agentrl.tasks.harbor import SOLUTION
from agentrl.tasks.shell.draft import ANSWER
from agentrl.tasks.shell.generate import generate
from tiny_agents.record import Call, record

ELSEWHERE = "result.txt"
"""The wrong call writes the word here."""


class LessonError(RuntimeError):
    """The program did something else than the lesson needs, or the policy did not learn it."""


@dataclass(frozen=True)
class Lesson:
    """A prompt, and what the policy is to write next, each answer as often as the others."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    answers: Sequence[str]


@dataclass(frozen=True)
class Tools:
    """How a program's model acts: the call that runs a line of bash, and the call that ends the run."""

    run: Callable[[str], Call]
    end: Call


PROGRAMS = {
    "mini-swe-agent": Tools(
        run=lambda line: Call("bash", {"command": line}),
        end=Call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
    )
}
"""By the program's name."""


async def lessons(harness: Harness, tasks: Sequence[str], say: Callable[[str], None]) -> list[Lesson]:
    """Return the lessons of tasks of the family ``write_word``, recorded from the program.

    Raises:
        LessonError: the program asks otherwise than expected, or the verifier disagrees.
    """
    tools, found = PROGRAMS[harness.name], []
    for task in tasks:
        solution = generate(task).solution[SOLUTION].data.decode().splitlines()[-1]
        right, wrong = tools.run(solution), tools.run(solution.replace(ANSWER, ELSEWHERE))
        first: Lesson | None = None
        for call, score in ((right, 1.0), (wrong, 0.0)):
            run = await record(harness, task, [call, tools.end])
            if (len(run.requests), run.score) != (2, score):
                raise LessonError(f"{task}: {len(run.requests)} requests and a score of {run.score}, not 2 and {score}")
            opening, closing = run.requests
            first = Lesson(opening["messages"], opening["tools"], [right.text, wrong.text])
            found.append(Lesson(closing["messages"], closing["tools"], [tools.end.text]))
        assert first is not None
        found.append(first)
        say(f"recorded {harness.name} on {task}")
    return found
