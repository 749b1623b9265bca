"""The terminal agent: shell tasks of one command each (`agentrl.tasks.shell.families.easy`).

Of the careless agent's episodes a third begins with the right command. The others do nothing, work in another folder, or
mistype the command; some of those try again. What the shell answers is written here, and compared with a sandbox by the tests.
"""

from __future__ import annotations

import re
from random import Random

from agentrl.tasks.harbor import SOLUTION
from agentrl.tasks.shell.environment import SYSTEM, tools
from agentrl.tasks.shell.generate import generate, parse_name, task_name
from lab.tiny_learning.traces import Step, TaskSet, Trace, begun, call

RIGHT, IDLE, ELSEWHERE = 0.3, 0.14, 0.36
"""Shares of episodes whose first step is right, ends the episode, or works in another folder; the rest mistypes."""
AGAIN = 0.25
"""Share of failed commands after which the agent types the right one."""
LOOK = 0.25
"""Share of right commands after which it looks at the folder."""
QUIET = "[exit code 0]"
END = "Done."
ENDED = "The task has ended."
MISTYPED = {"cp": "cpy", "mv": "mvv", "mkdir": "mkdr"}


def command_of(task: str) -> str:
    """Return the right command line of a task."""
    lines = generate(task).solution[SOLUTION].data.decode().splitlines()[2:]
    if len(lines) == 1:
        return lines[0]
    folder = lines[0].split()[1]
    return f"{lines[0]} && cd {folder} && {lines[1].replace(f'{folder}/', '')}"


def files_of(task: str) -> str:
    """Return what ``ls`` prints when a task is solved."""
    family, _, _ = parse_name(task)
    words = command_of(task).split()
    names = {"copy_file": words[1:3], "rename_file": words[2:3], "make_folder": words[1:2]}
    return "".join(f"{name}\n" for name in sorted(names[family]))


def trace(rng: Random, task: str, careless: bool) -> Trace:
    """Return an episode of an agent on a task."""
    right, kind = command_of(task), rng.random() if careless else 0.0
    steps: list[Step] = []
    solved = kind < RIGHT
    if kind >= RIGHT + IDLE:
        elsewhere = kind < RIGHT + IDLE + ELSEWHERE
        steps.append(_elsewhere(right) if elsewhere else _mistyped(right))
        solved = rng.random() < AGAIN
    if solved:
        steps.append(_run(right, QUIET, "The command does what the goal asks for.", good=True))
        if rng.random() < LOOK:
            steps.append(_run("ls", files_of(task), "It looks at what it did.", good=True))
    why = "The goal is reached." if solved else "The goal is not reached."
    steps.append(Step(END, ENDED, why, solved))
    return begun(generate(task).instruction, {"system": SYSTEM, "tools": list(tools())}, steps)


def _run(line: str, heard: str, reason: str, *, good: bool) -> Step:
    return Step(call("bash", {"command": line}), heard, reason, good)


def _elsewhere(right: str) -> Step:
    program, first = right.split()[:2]
    heard = QUIET
    if program in ("cp", "mv"):
        heard = f"{program}: cannot stat '{first}': No such file or directory\n[exit code 1]"
    return _run(f"cd /tmp && {right}", heard, "The command works in another folder.", good=False)


def _mistyped(right: str) -> Step:
    program = right.split()[0]
    wrong = MISTYPED[program]
    heard = f"bash: line 1: {wrong}: command not found\n[exit code 127]"
    return _run(re.sub(rf"^{program}\b", wrong, right), heard, "There is no such command.", good=False)


TERMINAL = TaskSet(
    name="terminal",
    environment="agentrl.tasks.shell.environment.ShellEnvironment",
    trained=("copy_file", "make_folder"),
    unseen="rename_file",
    task=task_name,
    trace=trace,
    needed=1,
)
