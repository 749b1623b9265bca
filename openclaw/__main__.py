"""``openclaw-rl COMMAND``, also ``python -m openclaw COMMAND``: one name for the programs of this package.

Guarantees: a command runs as ``python -m`` would run it. Nothing of any other command is imported.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

PROG = "openclaw-rl"
USAGE_EXIT = 2
COMMANDS = {
    "chat": "talk to a running server, rate its replies, and see what it learns",
    "inspect": "show the verdict, sample and step of each turn of a run, or all about one turn",
    "runs": "list the runs of this machine, the newest first",
    "report": "write one HTML file about a run: is it learning, and why turns were not trained",
    "doctor": "say what is wrong with a run, with the evidence and what to type",
    "forget": "delete all data of a session of a run",
    "export": "write the conversations of a run as JSON lines",
    "lessons": "read and change what a run learned to do for a person at once",
    "replay": "make the samples of a finished run again, and compare them bit by bit",
    "resume": "let a run train again that a fuse has paused",
    "versions": "show the versions of a run's weights, and what the gate decided",
    "rollback": "let an earlier version of a run's weights serve again",
    "accept": "accept a change of taste that the gate refused several times",
    "models": "list the models of the launch scripts, or download one",
    "method": "check the folder of a learning method",
    "server": "serve a model and record its conversations, without training",
    "init": "write the files of a run and of your clients, after a few questions",
    "tinker": "let programs that use the package tinker train adapters of a model here",
    "launch": "start a run that serves and learns",
}
"""The name of each command, which is also its module in this package, and what it does."""
OF_INSPECT = frozenset({"forget", "export"})
"""Commands of ``openclaw-rl inspect RUN`` that are commands of their own, too; they have no module."""
ELSEWHERE = {
    "versions": "openclaw.gate.versions",
    "rollback": "openclaw.gate.rollback",
    "accept": "openclaw.gate.accept",
    "lessons": "openclaw.runs.lessons",
}
"""Commands whose modules are not named like them."""


def help_text() -> str:
    """Return the list of commands."""
    lines = [f"  {name:8} {what}" for name, what in COMMANDS.items()]
    end = f"{PROG} COMMAND --help lists the options of a command. {PROG} --version prints the version."
    return "\n".join([f"usage: {PROG} COMMAND ...", "", *lines, "", end])


def module_of(name: str) -> str:
    """Return the module of a command."""
    return ELSEWHERE.get(name, f"openclaw.{name}")


def version_line() -> str:
    """Return the version, the folder, and the commit if the folder is a clone."""
    import subprocess
    import tomllib
    from importlib import metadata

    root = Path(__file__).resolve().parents[1]
    if not (project := root / "pyproject.toml").is_file():  # a wheel
        return f"{PROG} {metadata.version(PROG)} in {root}"
    version = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"]
    command = ["git", "-C", str(root), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return f"{PROG} {version} in {root}"
    return f"{PROG} {version} (commit {commit}) in {root}"


def unknown(name: str) -> str:
    """Return a line about a command that does not exist, with the nearest name."""
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    return f"{PROG}: no command {name!r}; {f'type: {PROG} {near[0]}' if near else 'use one of ' + ', '.join(COMMANDS)}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that ``argv`` names; return the exit status, unless the command exits itself."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text())
        return 0 if words else USAGE_EXIT
    name, *rest = words
    if name in ("-V", "--version", "version"):
        print(version_line())
        return 0
    if name not in COMMANDS:
        print(unknown(name), file=sys.stderr)
        return USAGE_EXIT
    if name in OF_INSPECT:
        place = next((word for word in rest if not word.startswith("-")), "RUN")  # --help needs no run
        rest.remove(place) if place in rest else None
        name, rest = "inspect", [place, name, *rest]
    sys.argv[1:] = rest
    runpy.run_module(module_of(name), run_name="__main__", alter_sys=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
