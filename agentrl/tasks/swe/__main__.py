"""``python -m agentrl.tasks.swe``: list, check, export, import and compare instances.

Guarantees: errors are one line, with exit status 2. Nothing is fetched from a network, and an export writes new folders only. A check runs the solution
in sandboxes of its own, never in that of an agent.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from agentrl.exceptions import ConfigError, InfraError
from agentrl.sandbox.providers import NAMES
from agentrl.tasks.names import SPLITS
from agentrl.tasks.swe.check import checked
from agentrl.tasks.swe.source import InstanceSource
from openclaw.exceptions import ConfigError as VariableError
from slime.utils.command_line import CommandLine

PROG = "python -m agentrl.tasks.swe"


def build_parser() -> CommandLine:
    """Return the parser of the command line."""
    told = "; ".join(f"{each.name}: {each.help}" for each in InstanceSource.variables())
    parser = CommandLine(prog=PROG, description="List and check instances.", epilog=f"Variables: {told}.")
    commands = parser.add_subparsers(dest="command", required=True)
    ids = commands.add_parser("ids", help="print the ids of the instances, one a line")
    ids.add_argument("--split", choices=SPLITS, help="of one split only")
    check = commands.add_parser("check", help="grade the solution and an empty change of instances: 1 and 0")
    check.add_argument("names", nargs="*", metavar="ID", help="instances; default: all")
    check.add_argument("--parallel", type=int, default=2, metavar="N", help="instances at a time (%(default)s)")
    check.add_argument("--sandbox", choices=NAMES, default="bubblewrap", help="provider (%(default)s)")
    check.add_argument("--sandbox-image", metavar="NAME", help="image where an instance names none")
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the status of a check is 1 if an instance is not as it should be."""
    options = build_parser().parse_args(argv)
    try:
        source = InstanceSource.from_env()
        if options.command == "ids":
            print(*source.ids(options.split), sep="\n")
            return 0
        return asyncio.run(
            checked(source, options.names or source.ids(), options.parallel, options.sandbox, options.sandbox_image)
        )
    except (ConfigError, InfraError, VariableError) as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
