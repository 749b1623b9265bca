"""Starts ``python -m agentrl.pool`` as a process of a launcher or demo, and a trainer beside it.

Guarantee: the pool ends with the given stack, and with this process (lifeline).
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
from typing import NoReturn

from agentrl.exceptions import InfraError
from groundwork.process import spawn

LISTENING = re.compile(r"agentrl\.pool: listening on (http://\S+)")
START_S, STOP_S, POLL_SECONDS = 180.0, 60.0, 0.1


def start_pool(words: Sequence[str], log: Path, stack: ExitStack, environment: Mapping[str, str] = os.environ) -> str:
    """Start a pool on any free port; return its address once it listens.

    Args:
        words: its arguments, without a port.
        log: that it appends to; that of an earlier pool may be the same file.
        stack: with which it ends.
        environment: its variables.

    Raises:
        InfraError: it does not start; the message has the end of its log.
    """
    before = log.stat().st_size if log.exists() else 0
    command = [sys.executable, "-m", "agentrl.pool", *words, "--port", "0"]
    pool = spawn(command, env=dict(environment), log_path=log, name="pool")
    stack.callback(pool.stop, STOP_S)
    deadline = time.monotonic() + START_S
    while pool.alive() and time.monotonic() < deadline:
        if match := LISTENING.search(log.read_bytes()[before:].decode(errors="replace")):
            return match[1]
        time.sleep(POLL_SECONDS)
    raise InfraError(f"the pool did not start; the end of {log}:\n{pool.log_tail()}", code="pool_failed")


def train_beside_pool(
    command: Sequence[str], environment: Mapping[str, str], url: str | None, words: Sequence[str], run_dir: Path
) -> int:
    """Run a trainer, which gets SIGINT and SIGTERM; return its exit status.

    Args:
        command: of the trainer.
        environment: of the trainer, but for the pool's address.
        url: of a pool or router; None: a pool is started, and ends with the trainer.
        words: arguments of that pool.
        run_dir: where its log goes.

    Raises:
        InfraError: the pool does not start.
    """
    with ExitStack() as stack:
        pool = url or start_pool(words, run_dir / "pool.log", stack)
        trainer = subprocess.Popen(command, env={**environment, "AGENTRL_POOL_URL": pool})
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda got, _: trainer.send_signal(got))
        return trainer.wait()


def become_trainer_beside_pool(
    command: Sequence[str], environment: Mapping[str, str], url: str | None, words: Sequence[str], run_dir: Path
) -> NoReturn:
    """Do the same, and exit with the trainer's status."""
    try:
        sys.exit(train_beside_pool(command, environment, url, words, run_dir))
    except InfraError as error:
        print(f"launch: {error}", file=sys.stderr)
        sys.exit(2)
