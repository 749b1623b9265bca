"""Where a run is: its ledger, its URL, its import paths, and the line a person types to look into it.

Guarantees: imports neither torch nor Ray, so the launcher shows the same lines before a run as the run itself.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

from groundwork.command_line import CommandLine
from groundwork.paused import WITHOUT_NAME
from openclaw.config.runtime import RuntimeConfig
from openclaw.owners import LOCAL, root
from slime.args import Arguments

LEDGER_NAME = "ledger.sqlite"
DEFAULT_URL = "http://127.0.0.1:30000/v1"
CHECKPOINTS_NAME = "checkpoints"
ARGUMENTS_NAME = "arguments.json"
SCRATCH_NAME = "earlier"
RUNTIME_LOG_NAME = "runtime.log"
SETTINGS_NAME = "runtime.json"
"""The runtime's variables that are not defaults, without secrets."""
_ROOT = Path(__file__).resolve().parents[2]
RUNS = _ROOT / "runs" if (_ROOT / "pyproject.toml").is_file() else Path("runs")
"""Where launch scripts and demos put their runs; without a clone, the working directory's."""
NEWEST = "newest"
"""What a person may type in place of a run's folder."""


def ledger_path(args: Arguments, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the ledger file: ``OPENCLAW_LEDGER``, else next to the checkpoints (``--save``), else in ``--run-dir``."""
    named, _ = RuntimeConfig.declared("ledger").read(environment)
    if named:
        return Path(str(named)).absolute()
    return Path(args.save or args.run_dir).absolute() / LEDGER_NAME


def requests_path(ledger: str) -> Path:
    """Return the file of the requests under way of the runtime process that writes ``ledger``."""
    return Path(f"{ledger}.requests")


def find_ledger(place: Path) -> Path | None:
    """Return the ledger of ``place``: a ledger file, a run's folder, or a folder of checkpoints; None if there is none.

    A run's folder need not hold its checkpoints: ``arguments.json`` says where they are.
    """
    if place.is_file():
        return place
    folders = [place, place / CHECKPOINTS_NAME]
    try:
        saved = json.loads((place / ARGUMENTS_NAME).read_text())
    except (OSError, ValueError):
        saved = {}
    if isinstance(saved, dict) and saved.get("save"):
        folders.append(Path(saved["save"]))
    return next((folder / LEDGER_NAME for folder in folders if (folder / LEDGER_NAME).is_file()), None)


def checkpoints_of(run_dir: str | Path) -> Path:
    """Return the folder of a run's checkpoints: as ``arguments.json`` says, else the usual one."""
    try:
        arguments = json.loads(Path(run_dir, ARGUMENTS_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        arguments = None
    saved = arguments.get("save") if isinstance(arguments, dict) else None
    return Path(saved) if isinstance(saved, str) and saved else Path(run_dir, CHECKPOINTS_NAME)


def scratch_of(run_dir: str | Path) -> Path:
    """Return the folder in which an earlier version lies while it is loaded (`openclaw.runtime.earlier`)."""
    return Path(run_dir, SCRATCH_NAME)


def all_runs() -> list[Path]:
    """Return the folders of all runs in ``runs/`` of the repository and of the working directory, the newest first."""
    there = {place.resolve(): place for place in (Path("runs"), RUNS) if place.is_dir()}
    results = [path for place in there.values() for path in place.iterdir() if path.is_dir() and is_run(path)]
    return sorted(results, key=last_change, reverse=True)


def is_run(folder: Path) -> bool:
    """Return whether a folder is a run's: it has a ledger, or what the trainer or an agent loop records."""
    return find_ledger(folder) is not None or any((folder / name).exists() for name in (ARGUMENTS_NAME, "logs"))


def last_change(folder: Path) -> float:
    """Return when a run last wrote, in seconds since the epoch."""
    ledger = find_ledger(folder)
    seen = [folder, folder / "logs", *([ledger, Path(f"{ledger}-wal")] if ledger else [])]
    return max(item.stat().st_mtime for item in seen if item.exists())


def run_place(text: str) -> Path:
    """Parse what a person types for a run: a path, or `NEWEST` for the newest run with a ledger, which is then told.

    Raises:
        argparse.ArgumentTypeError: there is no run yet.
    """
    if text != NEWEST:
        return Path(text).expanduser()
    run = next((item for item in all_runs() if find_ledger(item)), None)
    if run is None:
        raise argparse.ArgumentTypeError(f"there is no run in {shown_path(RUNS)} yet; start one, or name its folder")
    print(f"the newest run: {shown_path(run)}", file=sys.stderr)
    return Path(shown_path(run))


def add_run(parser: CommandLine, name: str = "run", *, optional: bool = False) -> None:
    """Add the argument ``RUN``; if it is ``optional``, its default is the newest run."""
    what = f"a run's folder, its folder of checkpoints, its ledger, or the word {NEWEST}"
    if optional:
        parser.add_argument(
            name, type=run_place, metavar="RUN", nargs="?", default=NEWEST, help=f"{what} (default: {NEWEST})"
        )
        return
    parser.add_argument(name, type=run_place, metavar="RUN", help=what)
    parser.missing_hints["RUN"] = f"the word {NEWEST}, or a folder that openclaw-rl runs lists"


def add_person(parser: argparse.ArgumentParser, what: str) -> None:
    """Add the option ``--person``, which names whose adapter a command is about; its value is None without it."""
    parser.add_argument("--person", type=_person, metavar="NAME", help=f"{what}; {WITHOUT_NAME}: who has no key")


def _person(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError(f"the person has no name; use the name of a key, or {WITHOUT_NAME}")
    if (person := root(text)) != text:
        raise argparse.ArgumentTypeError(f"{text} is a child key; its adapter is that of {person or WITHOUT_NAME}")
    return LOCAL if text == WITHOUT_NAME else text


def own_import_paths() -> list[str]:
    """Return this process's import paths, which the child gets, except the interpreter's own folders."""
    interpreter = (Path(sys.prefix), Path(sys.base_prefix))
    paths = [Path(path or os.getcwd()).absolute() for path in sys.path]
    own = [str(path) for path in paths if not any(path.is_relative_to(root) for root in interpreter)]
    return list(dict.fromkeys(own))


def reachable_host(host: str) -> str:
    """Return the host part of a URL for a gateway that listens on ``host``."""
    own = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"[{own}]" if ":" in own else own


def api_url(config: RuntimeConfig) -> str:
    """Return the URL of the OpenAI API; without a fixed port, say so."""
    url = f"{config.scheme}://{reachable_host(config.host)}"
    return f"{url}:{config.port}/v1" if config.port else f"{url} on a free port"


def shown_path(path: str | Path) -> str:
    """Return a path relative to the working directory if it is below it, else absolute.

    Symbolic links stay, because an environment's interpreter is one.
    """
    path = Path(path).absolute()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)


def own_command(*words: str) -> str:
    """Return the command line of ``openclaw-rl`` in this process's environment; an environment of pip may lack the program."""
    program = Path(sys.executable).with_name("openclaw-rl")
    own = [shown_path(program)] if program.exists() else [shown_path(sys.executable), "-m", "openclaw"]
    return shlex.join([*own, *words])


def chat_command(url: str) -> str:
    """Return the command that talks to a server from a terminal; ``url``: of its OpenAI API."""
    return own_command("chat", *([] if url == DEFAULT_URL else ["--base-url", url]))


def gate_command(name: str, run_dir: str | Path, person: str | None = None) -> str:
    """Return the command ``versions``, ``rollback`` or ``accept`` about a run, or about a person's adapter in it."""
    return own_command(name, shown_path(run_dir), *([] if person is None else ["--person", person or WITHOUT_NAME]))


def inspect_command(args: Arguments, environment: Mapping[str, str] = os.environ) -> str:
    """Return the command that shows a run's turns: it names the run's folder if the ledger is found from there."""
    path, run_dir = ledger_path(args, environment), Path(args.run_dir).absolute()
    from_folder = path.name == LEDGER_NAME and path.parent in (run_dir, run_dir / CHECKPOINTS_NAME)
    return own_command("inspect", shown_path(run_dir if from_folder else path))
