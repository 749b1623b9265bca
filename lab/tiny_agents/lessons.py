"""What the tiny policy is taught: for each task two first calls, a right and a wrong one, and after either the last reply.

Guarantee: the program's own verifier has judged both: the right call scores 1, the wrong one 0. The prompts are those that the
program sends, so the policy meets them again in training.
"""

from __future__ import annotations

import json
import random
import re
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from agentrl.harness.interface import Harness
from agentrl.tasks.harbor import SOLUTION
from agentrl.tasks.shell.draft import ANSWER
from agentrl.tasks.shell.generate import generate
from lab.tiny_agents.record import Call, Reply, Words, record

ELSEWHERE = "result.txt"
"""The wrong call writes the word here."""
VARIANTS = 5
"""Of each prompt that names a run or a time. All but the last are taught; on the last the policy is measured."""
RUN_ID = re.compile(r"\b[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}\b")
CLOCK = re.compile(r"\b[0-2]\d:[0-5]\d\b")
DAY = re.compile(r"\b(?:(Mon|Tue|Wed|Thu|Fri|Sat|Sun) )?20\d\d-\d\d-\d\d\b")


class LessonError(RuntimeError):
    """The program did something else than the lesson needs, or the policy did not learn it."""


@dataclass(frozen=True)
class Lesson:
    """A prompt, and what the policy is to write next, each answer as often as the others."""

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]]
    answers: Sequence[str]


def variants(lesson: Lesson) -> list[Lesson]:
    """Return a lesson as other runs at other times would send it, ``VARIANTS`` times; only itself if it names neither."""
    text = json.dumps(lesson.messages)
    if not any(pattern.search(text) for pattern in (RUN_ID, CLOCK, DAY)):
        return [lesson]
    return [replace(lesson, messages=json.loads(_at_another_time(text, number))) for number in range(VARIANTS)]


def _at_another_time(text: str, number: int) -> str:
    """Return a prompt as another run would send it."""
    draw, others = random.Random(number), dict[str, str]()

    def another_id(match: re.Match[str]) -> str:
        return others.setdefault(match[0], str(uuid.UUID(int=draw.getrandbits(128), version=4)))

    moment = datetime(2026, 1, 1) + timedelta(minutes=draw.randrange(3 * 365 * 24 * 60))
    dated = DAY.sub(lambda match: f"{moment:%a %Y-%m-%d}" if match[1] else f"{moment:%Y-%m-%d}", text)
    return CLOCK.sub(f"{moment:%H:%M}", RUN_ID.sub(another_id, dated))


@dataclass(frozen=True)
class Tools:
    """How a program's model acts: the call that runs a line of bash, and the reply that ends the run."""

    run: Callable[[str], Call]
    end: Reply


PROGRAMS = {
    "mini-swe-agent": Tools(
        run=lambda line: Call("bash", {"command": line}),
        end=Call("bash", {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}),
    ),
    "openclaw": Tools(run=lambda line: Call("exec", {"command": line}), end=Words("Done.")),
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
