"""``python -m agentrl.tasks.shell``: list, name and export generated tasks.

Guarantees: errors are one line, with exit status 2. An export writes new folders only.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from agentrl.tasks.harbor import write_task
from agentrl.tasks.names import SPLITS
from agentrl.tasks.shell.families import FAMILIES
from agentrl.tasks.shell.generate import generate, parse_name, task_name, task_toml
from groundwork.command_line import CommandLine
from groundwork.exceptions import ConfigError

PROG = "python -m agentrl.tasks.shell"


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    parser = CommandLine(
        prog=PROG, description="List the families of shell tasks, name tasks, or export them as Harbor folders."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="print the families")
    ids = commands.add_parser("ids", help="print the names of tasks, one a line, for python -m agentrl.harness --tasks")
    export = commands.add_parser("export", help="write task folders")
    export.add_argument("folder", type=Path, metavar="FOLDER", help="where the task folders are made")
    for command in (ids, export):
        add = command.add_argument
        add("--family", action="append", choices=[*FAMILIES], help="repeat it for more (default: all)")
        add("--split", choices=SPLITS, default="train", help="which tasks (%(default)s)")
        add("--first", type=int, default=0, metavar="N", help="number of the first task (%(default)s)")
        add("--count", type=int, default=1, metavar="N", help="tasks per family (%(default)s)")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; return the exit status."""
    options = build_parser().parse_args(argv)
    if options.command == "list":
        print(*FAMILIES, sep="\n")
        return 0
    numbers = range(options.first, options.first + options.count)
    names = [task_name(family, options.split, number) for family in options.family or FAMILIES for number in numbers]
    try:
        if options.command == "ids":
            for name in names:
                parse_name(name)
            print(*names, sep="\n")
            return 0
        for name in names:
            task = generate(name)
            write_task(task, task_toml(parse_name(name)[0]), options.folder / task.name)
            print(options.folder / task.name)
    except ConfigError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
