"""Starts a pool of environments as a process of the demo's.

Guarantee: what is started here ends with the given stack, and with the demo itself (lifeline).
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from slime.utils.process import ChildProcess, spawn

POLL_S = 0.1
POOL_S = 120.0
STOP_S = 60.0
LISTENING = re.compile(r"agentrl\.pool: listening on (http://\S+)")


class PoolFailed(RuntimeError):
    """The pool did not start; says where to look."""


def start(module: str, words: Sequence[str], log: Path, stack: ExitStack) -> ChildProcess:
    """Start a command of this repository, which ends with the stack."""
    child = spawn([sys.executable, "-m", module, *words], env=dict(os.environ), log_path=log, name=module)
    stack.callback(child.stop, STOP_S)
    return child


def start_pool(words: Sequence[str], log: Path, stack: ExitStack) -> str:
    """Start ``python -m agentrl.pool`` with these arguments and any free port; return its address.

    Raises:
        PoolFailed: it ended, or does not listen.
    """
    pool = start("agentrl.pool", [*words, "--port", "0"], log, stack)
    deadline = time.monotonic() + POOL_S
    while time.monotonic() < deadline and pool.alive():
        if found := LISTENING.search(log.read_text()):
            return found[1]
        time.sleep(POLL_S)
    raise PoolFailed(f"the pool did not start; the end of {log}:\n{pool.log_tail()}")
