"""What the driver does with the output of the run's other processes.

Guarantees: every line is appended to ``logs/processes.log`` in the run's folder as it arrives, from all machines. The
terminal shows warnings and errors only, each with its continuation lines and without Ray's prefix, and the same message
at most once in ten seconds.
"""

from __future__ import annotations

import logging
import re
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundwork.private_files import private, private_folder

logger = logging.getLogger(__name__)

LOG_NAME = "processes.log"
REPEAT_SECONDS = 10.0
CONTINUATION_LINES = 40
_HANDLER = "ray_print_logs"
# Both formats of `logging.basicConfig` in this package: of the rollout manager, and of ranks and engines.
_RECORD = re.compile(
    r"(?:\d{4}-\d\d-\d\d [\d:,]+ (?P<logger>\S+) (?P<level>[A-Z]+) (?P<message>.*)"
    r"|(?P<process>\[[^\]]+\]) (?P<own_level>[A-Z]+) (?P<own_logger>\S+): (?P<own_message>.*))"
)
_SHOWN = ("WARNING", "ERROR", "CRITICAL")


class ActorOutput:
    """Ray's handler of worker output, in place of the one that prints everything."""

    def __init__(self, log: Path) -> None:
        private_folder(log.parent)
        self._log = log
        self._lock = threading.Lock()
        self._continued: dict[Any, int] = {}
        self._last_shown: dict[str, float] = {}

    def __call__(self, data: Mapping[str, Any]) -> None:
        """Take a batch of lines of one process, as Ray gives them."""
        pid = data.get("pid")
        name = data.get("actor_name") or data.get("task_name") or "ray"
        with self._lock, open(self._log, "a", encoding="utf-8", opener=private) as log:
            for line in data.get("lines", ()):
                log.write(f"{name} {pid}: {line}\n")
                if (shown := self._on_terminal(pid, str(line))) is not None:
                    print(shown, file=sys.stderr, flush=True)

    def _on_terminal(self, pid: Any, line: str) -> str | None:
        """Return what the terminal shows of a line, or None."""
        if pid == "raylet":
            return f"ray: {line}"
        if found := _RECORD.match(line):
            self._continued[pid] = 0
            level = found["level"] or found["own_level"]
            if level not in _SHOWN:
                return None
            text = f"{level.lower()}: {found['message'] or found['own_message'] or ''}"
            text = f"{found['process']} {text}" if found["process"] not in (None, "[rank 0]") else text
            now = time.monotonic()
            if now - self._last_shown.get(text, -REPEAT_SECONDS) < REPEAT_SECONDS:
                return None
            self._last_shown = {
                text: now,
                **{old: at for old, at in self._last_shown.items() if now - at < REPEAT_SECONDS},
            }
            self._continued[pid] = CONTINUATION_LINES
            return text
        left = self._continued.get(pid, 0)
        self._continued[pid] = max(0, left - 1)
        return line if left else None


def take_over(run_dir: str | Path) -> None:
    """Handle worker output from now until `ray.shutdown`; call it right after `ray.init`.

    A Ray without this dispatcher keeps printing the output itself.
    """
    try:
        from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher
    except ImportError:
        logger.warning("this version of Ray prints the output of all processes itself; nothing is filtered")
        return
    output = ActorOutput(Path(run_dir) / "logs" / LOG_NAME)
    dispatcher.remove_handler(_HANDLER)
    dispatcher.add_handler(_HANDLER, output)
