"""What an agent is told, and how it sees what a command did: one block of bash per reply, as mini-swe-agent has it.

Pure.
"""

from __future__ import annotations

from agentrl.sandbox.interface import ExecResult

SENTINEL = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A command ends the episode if it succeeds and the first line that it prints is this one."""
MAX_CHARACTERS = 10_000
"""Of output that is shown whole; of a longer one both ends are."""
SYSTEM = """You are a programmer who mends a repository by commands of bash.

Write in every reply first a line that begins with THOUGHT: and says what you want to find out or to change. Then write exactly one command, or \
several that are joined with && or ||, in one block:

```bash
COMMAND
```

A reply with no such block, or with more than one, is refused."""
TOOL_SYSTEM = """You are a programmer who mends a repository by commands of bash. Call the tool bash exactly once in every reply, \
after a sentence that says what you want to find out or to change."""
ISSUE = """The repository in {home} has this issue:

<issue>
{statement}
</issue>

Change its source so that the issue is resolved. Do not change tests or their configuration: other tests will be run, and such changes \
are dropped."""
RULES = """

- Every command runs in a shell of its own that starts in {home}. Neither folder nor variables last; say `cd FOLDER && ...` if you need to.
- There is no network, and nobody answers questions.
- You may run {steps} commands.

Reproduce the issue, mend the source, and check. When you have finished, run this command alone:

{submit}"""
SUBMIT = f"echo {SENTINEL}"


def issue_text(statement: str, home: str) -> str:
    """Return the task itself, for a program that knows how it works."""
    return ISSUE.format(home=home, statement=statement.strip())


def task_text(statement: str, home: str, steps: int, *, blocks: bool) -> str:
    """Return the first message of the user."""
    submit = f"```bash\n{SUBMIT}\n```" if blocks else SUBMIT
    return issue_text(statement, home) + RULES.format(home=home, steps=steps, submit=submit)


def is_submission(result: ExecResult) -> bool:
    """Return whether a command submitted the work."""
    first = result.output.lstrip().split(b"\n", 1)[0].strip()
    return result.exit_code == 0 and first == SENTINEL.encode()


def seen(result: ExecResult, timeout_s: float, left: int) -> str:
    """Return what the agent sees of a command; ``left`` is the number of commands that it may still run."""
    text = result.output.decode(errors="replace")
    if result.timed_out:
        head = f"<returncode>-1</returncode>\n<note>It was ended after {timeout_s:g} s.</note>"
    else:
        head = f"<returncode>{result.exit_code}</returncode>"
    cut = len(text) - MAX_CHARACTERS
    if result.cut_bytes or cut > 0:
        half = MAX_CHARACTERS // 2
        head += f"\n<note>The middle of the output, {result.cut_bytes + max(cut, 0)} characters, is left out. Use head, tail, sed or grep.</note>"
        text = f"{text[:half]}\n[...]\n{text[-half:]}" if cut > 0 else text
    newline = "" if text.endswith("\n") or not text else "\n"
    return f"{head}\n<output>\n{text}{newline}</output>\nREMINDER: {left} commands left."
