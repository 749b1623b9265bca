"""``python -m agentrl.tasks.toolcall``: list and name tasks, write prompts for a run, and conversations to start from.

Guarantees: errors are one line, with exit status 2. A file that exists is not written over.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from agentrl.environment import Task
from agentrl.exceptions import AgentError
from agentrl.processes import Processes, ProcessLedger
from agentrl.tasks.names import SPLITS
from agentrl.tasks.toolcall.conversations import solved
from agentrl.tasks.toolcall.environment import TASKS_PER_FAMILY, ToolCallEnvironment, offered
from agentrl.tasks.toolcall.families import FAMILIES
from agentrl.tasks.toolcall.generate import parse_name, task_name
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError

PROG = "python -m agentrl.tasks.toolcall"
PROGRESS = 100


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog=PROG,
        description="List the families of tool tasks, name tasks, write prompts for a run, or write conversations of an "
        "oracle for supervised fine-tuning.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the families")
    ids = commands.add_parser("ids", help="print the names of tasks, one a line")
    prompts = commands.add_parser("prompts", help="write JSON lines for --prompt-data")
    sft = commands.add_parser("sft", help="write JSON lines with messages and tools, for supervised fine-tuning")
    for command in (prompts, sft):
        command.add_argument("file", type=Path, metavar="FILE", help="file to write; it must not exist")
    for command in (ids, prompts, sft):
        add = command.add_argument
        add(
            "--family",
            action="append",
            choices=[*FAMILIES],
            help="repeat it for more (default: all that TOOLS_CONFIG has the tools for)",
        )
        add("--split", choices=SPLITS, default="train", help="which tasks (%(default)s)")
        add("--first", type=int, default=0, metavar="N", help="number of the first task (%(default)s)")
        add("--count", type=int, default=1, metavar="N", help="tasks per family (%(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = build_parser().parse_args(argv)
    try:
        if options.command == "list":
            print(*FAMILIES, sep="\n")
            return 0
        names = names_of(options)
        if options.command == "ids":
            print(*names, sep="\n")
        elif options.command == "prompts":
            write(options.file, [{"prompt": name, "label": "", "metadata": {"task_id": name}} for name in names])
        else:
            asyncio.run(_sft(options.file, names))
    except (ConfigError, AgentError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    return 0


def names_of(options: argparse.Namespace) -> list[str]:
    """Return the names of the tasks that the options choose.

    Raises:
        ConfigError: a number is out of range, a family has no task of the split, or TOOLS_CONFIG lacks a tool of it.
    """
    able = offered(ToolCallEnvironment.config(), options.split)
    chosen = options.family or able
    if options.count < 1:
        raise ConfigError(f"invalid --count {options.count}: must be >= 1")
    numbers = range(options.first, options.first + options.count)
    names = [task_name(family, options.split, number) for family in chosen for number in numbers]
    for name in names:
        parse_name(name)
    if lacking := [family for family in chosen if family not in able]:
        raise ConfigError(f"TOOLS_CONFIG lacks a tool of {', '.join(lacking)}; add it, or choose another --family")
    if options.command == "prompts" and (most := TASKS_PER_FAMILY[options.split]) < options.first + options.count:
        raise ConfigError(f"a pool offers {most} tasks of a family of the split {options.split}; ask for these")
    return names


def write(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Write rows as JSON lines.

    Raises:
        ConfigError: the file exists, or cannot be written.
    """
    try:
        with path.open("x", encoding="utf-8") as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    except FileExistsError:
        raise ConfigError(f"{path} exists; remove it, or name another file") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from error
    print(f"{path}: {len(rows)} rows")


async def _sft(path: Path, names: Sequence[str]) -> None:
    if path.exists():
        raise ConfigError(f"{path} exists; remove it, or name another file")
    ToolCallEnvironment.settings().require_tool_calls()
    rows: list[dict[str, Any]] = []
    async for row in _conversations(names):
        rows.append(row)
        if len(rows) % PROGRESS == 0:
            print(f"{len(rows)} of {len(names)}", file=sys.stderr)
    write(path, rows)


async def _conversations(names: Sequence[str]) -> AsyncIterator[dict[str, Any]]:
    """Yield the rows of an oracle; its sandboxes end with each task."""
    with TemporaryDirectory() as folder:
        ledger = ProcessLedger(Path(folder) / "ledger.sqlite")
        try:
            for name in names:
                processes = Processes(ledger)
                try:
                    messages, tools, verdict = await solved(ToolCallEnvironment(processes), Task(name))
                finally:
                    await processes.end()
                if verdict.status != "ok":
                    raise ConfigError(f"the oracle failed {name}: {verdict.detail}; this is a defect")
                yield {"messages": messages, "tools": tools, "metadata": {"task_id": name}}
        finally:
            ledger.close()


if __name__ == "__main__":
    sys.exit(main())
