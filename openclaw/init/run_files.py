"""The files of a run: its variables, the script that starts it, and the unit with which systemd does.

Guarantees: the start script begins the run, and goes on with it where it has a checkpoint, so that the same line starts it after
a stop, a crash and a boot. It names no key; the file of variables does, which only this user can read.
"""

from __future__ import annotations

import re
import secrets
import shlex
from collections.abc import Mapping
from pathlib import Path

from groundwork.checkpoint_names import LATEST
from groundwork.exceptions import ConfigError
from openclaw.init.machine import Run
from openclaw.runtime.where import CHECKPOINTS_NAME

VARIABLES, START = "run.env", "start.sh"
KEY = "SGLANG_API_KEY"
KEY_BYTES = 24
OTHER = re.compile(r"[^A-Za-z0-9:_.-]+")
"""Characters that the name of no unit may have."""
SOURCE = "https://github.com/Gen-Verse/OpenClaw-RL"


def new_key() -> str:
    """Return a key that nobody has."""
    return secrets.token_urlsafe(KEY_BYTES)


def kept_key(folder: Path) -> str | None:
    """Return the key in the file of variables of an earlier init; None without one.

    Raises:
        ConfigError: its line is none that a shell reads.
    """
    try:
        lines = (folder / VARIABLES).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    text = next((line.partition("=")[2] for line in lines if line.startswith(f"{KEY}=")), "")
    try:
        return (shlex.split(text) or [None])[0]
    except ValueError as error:
        raise ConfigError(f"{folder / VARIABLES}: the line of {KEY} has {str(error).lower()}; mend it") from error


def variables_text(run: Run, variables: Mapping[str, str]) -> str:
    """Return the file of variables, which a shell reads."""
    head = [
        f"# Variables of a run of OpenClaw-RL ({run.what}), written by openclaw-rl init.",
        "# All of them: instructions/configuration.md. Keep this file to yourself, it may hold keys.",
    ]
    return "\n".join([*head, *(f"{name}={shlex.quote(value)}" for name, value in variables.items()), ""])


def start_text(run: Run, clone: Path, run_dir: Path) -> str:
    """Return the script that starts the run or goes on with it."""
    words = " ".join(["bash", shlex.quote(str(run.script)), *run.words])
    newest = shlex.quote(str(run_dir / CHECKPOINTS_NAME / LATEST))
    return f"""#!/usr/bin/env bash
# Starts the run, or goes on with it; written by openclaw-rl init. Further words are options of the launch script.
set -euo pipefail
set -a
source "$(dirname "${{BASH_SOURCE[0]}}")/{VARIABLES}"
set +a
cd {shlex.quote(str(clone))}
if [ -f {newest} ]; then export RESUME=1; fi
exec {words} "$@"
"""


def unit_text(run: Run, start: Path, clone: Path) -> str:
    """Return a user unit of systemd for the run."""
    return f"""# Written by openclaw-rl init. Log: journalctl --user -u {unit_name(start.parent)}
[Unit]
Description=OpenClaw-RL ({run.what})

[Service]
Type=exec
WorkingDirectory={_specifier(str(clone))}
ExecStart=/usr/bin/env bash {_quoted(str(start))}
Restart=on-failure
RestartSec=30
KillMode=mixed
TimeoutStopSec=180
UMask=0077

[Install]
WantedBy=default.target
"""


def unit_name(folder: Path) -> str:
    """Return the name of the unit whose run has its files in ``folder``."""
    name = OTHER.sub("-", folder.name)
    return "openclaw-rl" if name == "openclaw-rl" else f"openclaw-rl-{name}"


def _specifier(text: str) -> str:
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    escaped = _specifier(text).replace("\\", "\\\\").replace('"', '\\"').replace("$", "$$")
    return f'"{escaped}"'


def next_command(run: Run, clone: Path, folder: Path, *, cloned: bool, model_here: bool, unit: bool) -> str:
    """Return what to type next: what is missing on this machine, then the start."""
    there = shlex.quote(str(clone))
    steps = [] if cloned else [f"git clone {SOURCE} {there}"]
    if run.model is not None:
        if not (clone / ".venv" / ".setup-gpu").is_file():
            steps.append(f"bash {there}/scripts/setup.sh gpu")
        if not model_here:
            steps.append(f"(cd {there} && .venv/bin/python -m openclaw.models {run.model.name})")
    if unit:
        if run.model is None and not (clone / ".venv" / ".setup-cpu").is_file():
            steps.append(f"bash {there}/scripts/setup.sh cpu")
        steps.append(f"systemctl --user daemon-reload && systemctl --user enable --now {unit_name(folder)}")
    else:
        steps.append(f"bash {shlex.quote(str(folder / START))}")
    return " && ".join(steps)
