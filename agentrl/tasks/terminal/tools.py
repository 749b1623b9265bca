"""The tools of a terminal agent: shells that live on between calls, single commands, and files.

Guarantee: a call that makes no sense is an `InvalidError` whose text tells the agent what to write.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated

from pydantic import Field

from agentrl.protocol import JsonObject
from agentrl.tasks.shell.tools import LONGEST_COMMAND_S, Arguments, Bash, openai_tool, read_call_of
from agentrl.tasks.terminal.sessions import Seen

BLOCK_S = 20.0
"""How long a blocking command is waited for by default; then it goes on in the background."""
SYSTEM = (
    "You solve a task in a Linux machine without a network, through tools. Shells keep their folder and variables "
    "between calls; each has an id of your choice and begins in the working directory /work. Carry the task out with "
    "the tools, and check the result. A reply without a tool call ends the task."
)
HOW = (
    "call shell_exec with an id and a command, shell_view, shell_write_to_process, shell_write_content_to_file, or bash; "
    "a reply without a tool call ends the task"
)
Id = Annotated[str, Field(min_length=1, max_length=64, description="name of the shell, such as main")]


class ShellExec(Arguments):
    """Run a command in a persistent shell, which is started if there is none of this id."""

    id: Id
    command: Annotated[str, Field(min_length=1, max_length=100_000, description="the command line")]
    block: Annotated[
        bool, Field(description="whether to wait for its end; otherwise it runs in the background. Default true")
    ] = True
    timeout_s: Annotated[
        float,
        Field(gt=0, le=LONGEST_COMMAND_S, description="most seconds to wait; then it goes on. Default 20"),
    ] = BLOCK_S


class ShellView(Arguments):
    """Show what a shell printed since the last look, and whether its command still runs."""

    id: Id


class ShellWrite(Arguments):
    """Write a line to the program that runs in a shell; ^C interrupts it."""

    id: Id
    command: Annotated[str, Field(max_length=4000, description="the line, or ^C")]


class ShellFile(Arguments):
    """Write a text file, and the folders above it."""

    content: Annotated[str, Field(max_length=1_000_000, description="the whole text of the file")]
    file_path: Annotated[
        str, Field(min_length=1, max_length=1000, description="below /work or /tmp; a relative one is below /work")
    ]


Call = Bash | ShellExec | ShellView | ShellWrite | ShellFile
CALLS: Mapping[str, type[Call]] = MappingProxyType(
    {
        "shell_exec": ShellExec,
        "shell_view": ShellView,
        "shell_write_to_process": ShellWrite,
        "shell_write_content_to_file": ShellFile,
        "bash": Bash,
    }
)


def tools() -> list[JsonObject]:
    """Return the tools in OpenAI's format."""
    return [openai_tool(name, kind) for name, kind in CALLS.items()]


def read_call(action: JsonObject) -> Call | None:
    """Return the call of an action; see `agentrl.tasks.shell.tools.read_call_of`."""
    return read_call_of(action, CALLS, HOW)


def shown(seen: Seen) -> str:
    """Return what the agent sees of a shell: its output, and notes in brackets."""
    notes = [f"[{seen.cut} bytes in the middle of the output are left out]"] if seen.cut else []
    if seen.running:
        notes.append("[still running; shell_view shows more, and ^C by shell_write_to_process interrupts it]")
    elif seen.ended:
        notes.append(f"[the shell has ended with status {seen.status}; the next shell_exec starts a new one]")
    elif seen.status or not seen.output:
        notes.append(f"[exit code {seen.status}]")
    return "\n".join([*filter(None, [seen.output.removesuffix("\n")]), *notes]) if notes else seen.output
