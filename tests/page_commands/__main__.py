"""List the commands of every page and how each is tested, or run them as written: ``python -m tests.page_commands``.

The tests run what needs no GPU, no network and no minutes. The rest runs here, where a machine has what it needs:
``--run --kind "dry run" --page scripts`` starts the launch scripts of that page in this checkout, with your environment.
A command that serves goes on until Ctrl-C; ``--seconds`` presses it.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from tests.page_commands.blocks import ROOT, Command, all_commands
from tests.page_commands.rules import Kind, NoRuleError, Rule, rule_of

STOP_SECONDS = 300.0
"""How long a command may take to end after Ctrl-C."""
INTERRUPTED_EXITS = (-signal.SIGINT, 128 + signal.SIGINT)


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.page_commands", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--page", default="", metavar="TEXT", help="only pages with this in their path")
    parser.add_argument("--kind", nargs="+", type=Kind, choices=list(Kind), default=[], help="only these kinds")
    parser.add_argument("--run", action="store_true", help="run them as written; needs --page or --kind")
    parser.add_argument(
        "--seconds", type=float, metavar="S", help="press Ctrl-C after this time (default: wait for the end)"
    )
    return parser


def chosen(page: str, kinds: Sequence[Kind]) -> list[tuple[Command, Rule]]:
    """Return the commands of the pages and kinds, each with its rule.

    Raises:
        NoRuleError: a command has none.
    """
    ruled = [(command, rule_of(command)) for command in all_commands() if page in command.page]
    return [(command, rule) for command, rule in ruled if not kinds or rule.kind in kinds]


def run(command: Command, seconds: float | None) -> bool:
    """Run a command as written; return whether it ended well, or by the Ctrl-C that was asked for."""
    environment = {**os.environ, "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"}
    script = "\n".join([*command.before, command.text])
    start, stopped = time.monotonic(), False
    # A job of a script in the background begins with SIGINT ignored, and so would its children: Ctrl-C would not end them.
    child = subprocess.Popen(
        ["env", "--default-signal=INT", "bash", "-eo", "pipefail", "-c", script],
        cwd=ROOT,
        env=environment,
        start_new_session=True,
    )
    try:
        child.wait(seconds)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        stopped = True
        os.killpg(child.pid, signal.SIGINT)
        try:
            child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    good = child.returncode == 0 or (stopped and child.returncode in INTERRUPTED_EXITS)
    ended = f"exit code {child.returncode} after {time.monotonic() - start:.0f} s{', stopped' * stopped}"
    print(f"{'ok' if good else 'FAILED':<7} {command.place}: {ended}", flush=True)
    return good


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; returns 1 if a command failed."""
    parser = build_parser()
    options = parser.parse_args(argv)
    if options.run and not (options.page or options.kind):
        parser.error("--run changes this checkout and takes hours for all pages; add --page TEXT or --kind KIND")
    try:
        found = chosen(options.page, options.kind)
    except NoRuleError as error:
        print(error, file=sys.stderr)
        return 1
    failed = 0
    for command, rule in found:
        print(f"{rule.kind:<9} {command.place}: {command.first_line}", flush=True)
        if not options.run:
            if rule.kind.expensive:
                print(f"{'':<9} {rule.why}")
        elif command.is_fragment:
            print(f"skipped {command.place}: a part of a command or of a file")
        else:
            failed += not run(command, options.seconds)
    print(f"{len(found)} commands" + (f", {failed} failed" if options.run else ""))
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
