"""Let bash read a page's commands: its quotes, variables and files are those of a reader's shell.

Programs of the project are stand-ins on the ``PATH`` that write down how they were called; everything else is real.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

RECORDED = ("python", "python3", "curl", "openclaw-rl", "ray")
# `python -c` inside a script answers a question of the script, so it runs.
_RECORDER = f"""#!/usr/bin/env bash
if [ "${{1:-}}" = -c ]; then exec {sys.executable} "$@"; fi
input="$(cat)"
{{ printf '%s\\0' "${{0##*/}}" "$PWD" "$#" "$@" "$input"; env -0; }} >"$PAGE_CALLS/$(printf %04d "$(find "$PAGE_CALLS" -type f | wc -l)")"
"""
# What `openssl rand -hex N` prints, on a machine without it.
_HEX_NUMBER = """#!/usr/bin/env bash
[ "$1 $2" = "rand -hex" ] && head -c "$3" /dev/urandom | od -An -v -tx1 | tr -d ' \\n'
"""
SECONDS = 60


@dataclass(frozen=True)
class Call:
    """One call of a program: its name, the folder it starts in, its words, its input and its environment."""

    program: str
    folder: str
    words: tuple[str, ...]
    typed: str
    environment: dict[str, str]


class ShellError(RuntimeError):
    """bash ended with ``code``, having ``printed``."""

    def __init__(self, code: int, printed: str) -> None:
        """Remember both."""
        super().__init__(f"exit code {code}: {printed}")
        self.code, self.printed = code, printed


def make_environment(folder: Path) -> None:
    """Write an environment ``.venv`` of stand-ins into ``folder``."""
    programs = folder / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in RECORDED:
        (programs / name).write_text(_RECORDER)
        (programs / name).chmod(0o755)
    if shutil.which("openssl") is None:
        (programs / "openssl").write_text(_HEX_NUMBER)
        (programs / "openssl").chmod(0o755)
    (programs / "activate").write_text(f'export PATH="{programs}:$PATH"\n')


def calls_of(folder: Path, script: str) -> list[Call]:
    """Run ``script`` in ``folder`` and return the calls of the project's programs.

    Raises:
        ShellError: it fails, with what it printed.
    """
    records = folder / ".calls"
    records.mkdir(exist_ok=True)
    for old in records.iterdir():
        old.unlink()
    kept = ("PATH", "HOME", "TMPDIR", "LANG", "OMP_NUM_THREADS", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "NO_PROXY")
    environment = {name: os.environ[name] for name in kept if name in os.environ}
    environment["PATH"] = f"{folder / '.venv' / 'bin'}:{environment['PATH']}"
    environment["PAGE_CALLS"] = str(records)
    ended = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    if ended.returncode:
        raise ShellError(ended.returncode, ended.stdout + ended.stderr)
    return [_read(record) for record in sorted(records.iterdir())]


def _read(record: Path) -> Call:
    program, folder, count, *rest = record.read_text().removesuffix("\0").split("\0")
    words, typed, entries = rest[: int(count)], rest[int(count)], rest[int(count) + 1 :]
    pairs = (entry.split("=", 1) for entry in entries if "=" in entry)
    environment = {name: value for name, value in pairs if name != "PAGE_CALLS"}
    return Call(program, folder, tuple(words), typed, environment)
