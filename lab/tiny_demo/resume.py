"""Stop the demo and continue it later: what it remembers in its run's folder, and the lines it prints at its end.

Guarantees: a resumed demo measures the same problems as the first part and compares them with the first measurement. Its
student starts new conversations, so no session of the first part goes on.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from measure import Item, Measurement, Reply

from groundwork.checkpoint_names import LATEST
from groundwork.command_line import nearest_path
from openclaw.launch.report import STARTED_AS
from openclaw.runtime.where import CHECKPOINTS_NAME, find_ledger, own_command, shown_path

DEVICES = ("cpu", "cuda", "tinker")
STATE_NAME = "demo.json"
OPTIONS = ("device", "updates", "seed", "client", "taste", "sessions", "max_turns", "heldout", "launcher_arguments")
"""What a resumed demo takes over from its first part, unless the command line says otherwise."""

SEEDS_APART = 1000


@dataclass
class State:
    """What a demo remembers.

    Attributes:
        options: of the first part.
        before: the measurement before training.
        gsm8k_before: the same on GSM8K, if asked for.
        history: the learning curve.
        parts: how often the demo was started.
    """

    options: dict[str, Any]
    before: Measurement | None = None
    gsm8k_before: Measurement | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    parts: int = 1

    def speaker(self, seed: int) -> tuple[str | None, int]:
        """Return name and seed of the student of this part; None is the usual name."""
        return (None, seed) if self.parts == 1 else (f"student-part{self.parts}", seed + SEEDS_APART * self.parts)

    def save(self, run_dir: Path) -> None:
        """Write it atomically."""
        draft = run_dir / f".{STATE_NAME}.part"
        draft.write_text(json.dumps(asdict(self), indent=1) + "\n")
        draft.replace(run_dir / STATE_NAME)


def load(run_dir: Path) -> State | None:
    """Return the state in a run's folder, None if there is none."""
    path = run_dir / STATE_NAME
    if not path.is_file():
        return None
    saved = json.loads(path.read_text())
    for name in ("before", "gsm8k_before"):
        if saved[name]:
            replies = [Reply(**{**reply, "item": Item(**reply["item"])}) for reply in saved[name]["replies"]]
            saved[name] = Measurement(tuple(replies))
    return State(**saved)


def options_of(options: argparse.Namespace) -> dict[str, Any]:
    """Return the options that a resumed demo takes over."""
    return {name: getattr(options, name) for name in OPTIONS}


def has_checkpoint(run_dir: Path) -> bool:
    """Return whether the run in a folder can go on."""
    return (run_dir / CHECKPOINTS_NAME / LATEST).is_file()


def folder_prefix(title: str, live: bool, device: str) -> str:
    """Return how the names of the run folders begin; ``title``: the method's name."""
    return f"tiny-{'gpu' if device == 'cuda' else device}-{'live-' if live else ''}{title}-"


def newest_stopped(runs: Path, *prefixes: str) -> Path | None:
    """Return the newest folder in ``runs`` with one of the prefixes, a checkpoint and no report, None if there is none."""
    found = {
        path.name.removeprefix(prefix): path
        for prefix in prefixes
        for path in runs.glob(f"{prefix}*")
        if has_checkpoint(path) and not (path / "report.json").exists()
    }
    return found[max(found)] if found else None


def continued(
    parser: argparse.ArgumentParser, options: argparse.Namespace, title: str, argv: Sequence[str] | None, runs: Path
) -> tuple[argparse.Namespace, State | None]:
    """Return the options of a resumed demo, with those of its first part as defaults, and what it remembers."""
    parser.set_defaults(device=None)
    asked = parser.parse_known_args(argv)[0].device
    prefixes = {device: folder_prefix(title, options.live, device) for device in ([asked] if asked else DEVICES)}
    run_dir = options.run_dir or newest_stopped(runs, *prefixes.values())
    if run_dir is None:
        parser.error(f"--resume: no stopped run of method {title} in {runs}; name its folder with --run-dir")
    named = [device for device, prefix in prefixes.items() if run_dir.name.startswith(prefix)]
    options.device = asked or (named or [options.device])[0]
    state = load(run_dir)
    if state is not None:
        # Demos that do not remember their device were for the CPU alone.
        first = {"device": "cpu"} | state.options
        parser.set_defaults(**{name: value for name, value in first.items() if name != "launcher_arguments"})
        options, given = parser.parse_known_args(argv)
        options.launcher_arguments = given or state.options["launcher_arguments"]
        state.parts += 1
    options.run_dir = run_dir
    return options, state


def problem(options: argparse.Namespace, state: State | None) -> str | None:
    """Return why the options fit no run, and what to type; None if they fit."""
    run_dir = options.run_dir
    if not options.resume:
        if find_ledger(run_dir) is None or (options.live and not has_checkpoint(run_dir)):
            return None  # a person's run that ended before its first checkpoint begins again, with what was said
        again = "add --resume to continue it, or " if has_checkpoint(run_dir) else ""
        return f"--run-dir {run_dir} already has a run; {again}name another folder"
    if not run_dir.is_dir():
        return f"--resume: {run_dir}: no such folder{nearest_path(run_dir)}"
    if not has_checkpoint(run_dir):
        return f"--resume: {run_dir} holds no checkpoint; start without --resume, in another folder"
    if options.live:
        return None
    done = steps_of(run_dir)
    if done >= options.updates and not options.keep_serving:
        return f"--resume: the run in {run_dir} has {done} updates of {options.updates}; add --updates {done + 16}"
    if state is not None and state.before is not None and len(state.before.replies) != options.heldout:
        return (
            f"--heldout {options.heldout}: the first part measured {len(state.before.replies)} problems; leave it out"
        )
    return None


def steps_of(run_dir: Path) -> int:
    """Return the number of a run's steps that a checkpoint contains."""
    return int((run_dir / CHECKPOINTS_NAME / LATEST).read_text())


def last_lines(
    options: argparse.Namespace, argv: Sequence[str], environment: Mapping[str, str] = os.environ
) -> list[str]:
    """Return the lines to look into a stopped run and to continue it."""
    lines = look_lines(options.run_dir) if find_ledger(options.run_dir) else []
    if not has_checkpoint(options.run_dir):
        return [*lines, "continue no step was taken, so there is nothing to continue: start it again"]
    return [*lines, f"continue {continue_command(options, argv, environment)}"]


def continue_command(
    options: argparse.Namespace, argv: Sequence[str], environment: Mapping[str, str] = os.environ
) -> str:
    """Return the line that continues the run, as it was started."""
    words = shlex.split(environment.get(STARTED_AS, "")) or [shown_path(sys.executable), *argv]
    placed = any(word.partition("=")[0] == "--run-dir" for word in words)
    place = [] if placed else ["--run-dir", shown_path(options.run_dir)]
    again = [] if "--resume" in words else ["--resume"]
    return shlex.join([*words, *place, *again])


def say_how(options: argparse.Namespace) -> None:
    """Print the lines to look into a stopped run and to continue it."""
    for line in last_lines(options, sys.argv):
        print(line, file=sys.stderr)


def look_lines(run_dir: Path) -> list[str]:
    """Return the lines that show what a run learned, whether anything is wrong with it, and its turns."""
    asked = (("learned", "report"), ("healthy", "doctor"), ("turns", "inspect"))
    return [f"{what:8} {own_command(command, shown_path(run_dir))}" for what, command in asked]
