"""``python -m agentrl.sandbox``: runs the self-test of the bubblewrap sandbox and prints what holds.

Exit status: 0 if every promise holds, 1 if one does not or no sandbox starts.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

from agentrl.exceptions import InfraError
from agentrl.sandbox.bubblewrap import Bubblewrap
from agentrl.sandbox.self_test import prove
from groundwork.command_line import CommandLine

PROG = "python -m agentrl.sandbox"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the self-test; return the exit status."""
    CommandLine(prog=PROG, description="Test whether sandboxes hold on this machine.").parse_args(argv)
    provider = Bubblewrap()
    try:
        promises = asyncio.run(prove(provider))
    except InfraError as error:
        print(f"{PROG}: {error}", file=sys.stderr)
        return 1
    for promise in promises:
        print(f"{'holds ' if promise.holds else 'BROKEN'}  {promise.text}")
    for text in provider.weaker():
        print(f"weaker  {text}")
    broken = [promise for promise in promises if not promise.holds]
    for promise in broken:
        print(f"{PROG}: {promise.text}: found {promise.found}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
