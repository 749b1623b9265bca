"""Writes ``instructions/configuration.md`` from the declarations: ``python -m openclaw.launch.document``.

Guarantee: every variable and every flag is documented, and nothing that does not exist; a test compares the file with this.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

from openclaw.config import VARIABLES, Variable
from openclaw.launch.plan import REPOSITORY
from openclaw.launch.profiles import PROFILES
from openclaw.launch.variables import LAUNCH_VARIABLES
from slime.arguments.parser import build_parser

FILE = REPOSITORY / "instructions" / "configuration.md"

INTRODUCTION = """# Configuration

Written by `python -m openclaw.launch.document`; a test keeps it true.

A launch script has three sources, the later ones win: defaults of its profile, environment variables, and flags after the script's name.
`--dry-run` prints every value and where it came from, and starts nothing. An empty variable counts as unset. Secrets come from the environment,
the gateway's keys also from a file; they are never printed, logged or stored.
"""


def _cell(value: object) -> str:
    return "" if value is None else f"`{value}`"


def _variable_rows(variables: Sequence[Variable]) -> Iterator[str]:
    yield "| variable | default | meaning |"
    yield "|---|---|---|"
    for variable in variables:
        names = ", ".join(f"`{name}`" for name in variable.names)
        choices = f" ({', '.join(variable.choices)})" if variable.choices else ""
        yield f"| {names} | {_cell(variable.default)} | {variable.help}{choices} |"


def _flag_rows() -> Iterator[str]:
    for group in build_parser()._action_groups:
        shown = [action for action in group._group_actions if action.help not in (None, argparse.SUPPRESS)]
        shown = [action for action in shown if action.dest != "help"]
        if not shown:
            continue
        yield from ("", f"### {group.title}", "", "| flag | default | meaning |", "|---|---|---|")
        for action in shown:
            flags = ", ".join(f"`{name}`" for name in action.option_strings)
            default = None if action.nargs == 0 else action.default
            text = (action.help or "").split(" (default:")[0].replace("%%", "%").replace("|", "\\|")
            yield f"| {flags} | {_cell(default)} | {text} |"


def _profile_rows() -> Iterator[str]:
    yield "| profile | variable | default there |"
    yield "|---|---|---|"
    for profile in PROFILES.values():
        for name, value in {**profile.variables, **profile.runtime}.items():
            yield f"| {profile.name} | `{name}` | `{value}` |"
        for method, values in profile.methods.items():
            for name, value in values.items():
                yield f"| {profile.name}, {method} | `{name}` | `{value}` |"


def document() -> str:
    """Return the whole page."""
    lines = [INTRODUCTION, "## Variables of the launcher", "", *_variable_rows(LAUNCH_VARIABLES)]
    lines += ["", "## Variables of the runtime (gateway and judge)", "", *_variable_rows(VARIABLES)]
    lines += ["", "## Profiles", "", *_profile_rows()]
    lines += ["", "## Flags of the trainer", *_flag_rows()]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(document())
    print(FILE)
