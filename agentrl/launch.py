"""What the launchers of agent folders share: a pool of their own, and a trainer that they wait for.

Guarantee: what was started ends with the stack it was started in, and with this process.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from agentrl.exceptions import ConfigError
from slime.utils.process import spawn

LISTENING = re.compile(r"agentrl\.pool: listening on (http://\S+)")
START_S, STOP_S, POLL_S = 180.0, 60.0, 0.1
TRAINER = Path(__file__).resolve().parent.parent / "slime" / "train_async.py"


def start_pool(words: Sequence[str], run_dir: Path, stack: ExitStack) -> str:
    """Start a pool that ends with the stack; return its address.

    Args:
        words: its command after the interpreter.
        run_dir: where its log goes.
        stack: ends it.

    Raises:
        ConfigError: it does not start; the message has the end of its log.
    """
    log = run_dir / "pool.log"
    before = log.stat().st_size if log.exists() else 0  # an earlier pool's address is in the same file
    pool = spawn([sys.executable, *words], env=dict(os.environ), log_path=log, name="pool")
    stack.callback(pool.stop, STOP_S)
    deadline = time.monotonic() + START_S
    while pool.alive() and time.monotonic() < deadline:
        if found := LISTENING.search(log.read_bytes()[before:].decode(errors="replace")):
            return found[1]
        time.sleep(POLL_S)
    raise ConfigError(f"the pool did not start; the end of {log}:\n{pool.log_tail()}")


def train(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Run the trainer, which gets this process's signals; return its exit status."""
    trainer = subprocess.Popen([sys.executable, str(TRAINER), *words], env=dict(environment))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda got, _: trainer.send_signal(got))
    return trainer.wait()


def with_modules(folder: Path) -> dict[str, str]:
    """Return this process's environment with a folder from which Python imports modules."""
    paths = [str(folder), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
