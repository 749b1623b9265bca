"""The agent that mends repositories: mistakes of one line each, which one command mends (`agentrl.tasks.swe.families.easy`).

Of the careless agent's episodes a fifth begins with the right command. The others do nothing, work in another folder, name the
file without its folder, or mistype the command; some of those try again. What the shell answers is written here, and compared with a
sandbox by the tests.
"""

from __future__ import annotations

from random import Random

from agentrl.sandbox.interface import HOME, ExecResult
from agentrl.tasks.shell.environment import MAX_COMMAND_SECONDS, Bash, openai_tool
from agentrl.tasks.swe import prompts
from agentrl.tasks.swe.environment import SweEnvironment
from agentrl.tasks.swe.generate import draft_of, generate, task_name
from agentrl.tasks.swe.source import SIMPLE, InstanceSource
from lab.tiny_learning.traces import Step, TaskSet, Trace, begun, call

RIGHT, IDLE, ELSEWHERE, BARE = 0.22, 0.14, 0.22, 0.21
"""Shares of episodes whose first step is right, ends the episode, works in another folder, or names the file alone; the rest mistypes."""
AGAIN = 0.25
"""Share of commands of no use after which the agent types the right one."""
COMMANDS = 5
END = "Done."
ENDED = "The task has ended."


class EasyRepositories(SweEnvironment):
    """Easy instances, with calls of a tool for commands."""

    source = InstanceSource(benchmark=SIMPLE, actions="tool_calls", step_limit=COMMANDS)


def command_of(task: str) -> str:
    """Return the command that replaces the wrong code of a task."""
    draft = draft_of(task)
    return f"sed -i 's/ {draft.mistake.wrong}/ {draft.mistake.right}/' {draft.path}"


def trace(rng: Random, task: str, careless: bool) -> Trace:
    """Return an episode of an agent on a task."""
    right, kind = command_of(task), rng.random() if careless else 0.0
    steps: list[Step] = []
    solved = kind < RIGHT
    if kind >= RIGHT + IDLE:
        steps.append(_useless(task, kind - RIGHT - IDLE))
        solved = rng.random() < AGAIN
    if solved:
        steps.append(_run(right, 0, "", len(steps), "The command changes the code as the issue says.", good=True))
    why = "The issue is resolved." if solved else "The issue is not resolved."
    steps.append(Step(END, ENDED, why, solved))
    text = prompts.task_text(generate(task).statement, HOME, COMMANDS, blocks=False)
    return begun(text, {"system": prompts.TOOL_SYSTEM, "tools": [openai_tool("bash", Bash)]}, steps)


def _run(line: str, status: int, said: str, before: int, reason: str, *, good: bool) -> Step:
    """Return a command after so many others, with what the environment answers."""
    result = ExecResult(status, said.encode(), cut_bytes=0, timed_out=False, seconds=0.0)
    heard = prompts.seen(result, MAX_COMMAND_SECONDS, COMMANDS - before - 1)
    return Step(call("bash", {"command": line}), heard, reason, good)


def _useless(task: str, kind: float) -> Step:
    """Return a first command that mends nothing."""
    right, draft = command_of(task), draft_of(task)
    said = "sed: can't read {}: No such file or directory\n"
    if kind < ELSEWHERE:
        why = "The command works in another folder."
        return _run(f"cd /tmp && {right}", 2, said.format(draft.path), 0, why, good=False)
    if kind < ELSEWHERE + BARE:
        line = right.replace(draft.path, draft.module)
        return _run(line, 2, said.format(draft.module), 0, "The file has no such path.", good=False)
    said = "bash: line 1: sedd: command not found\n"
    return _run(f"sedd{right.removeprefix('sed')}", 127, said, 0, "There is no such command.", good=False)


SWE = TaskSet(
    name="swe",
    environment="lab.tiny_learning.mending.EasyRepositories",
    trained=("limits", "defaults"),
    unseen="calls",
    task=task_name,
    trace=trace,
    needed=1,
)
