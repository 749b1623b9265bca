"""On a CPU the scheduler and the detokenizer are forks of the server, which has imported SGLang already.

SGLang spawns them as fresh interpreters, because a CUDA context does not survive a fork; each imports all of SGLang again,
which is half of what an engine's start costs. Guarantee: a worker differs from a spawned one in that alone; what the server
set for itself (its folder for temporary files, its signal handlers) does not reach a worker.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
from typing import Any

_SERVER_SIGNALS = (signal.SIGQUIT, signal.SIGTERM, signal.SIGINT)


def install() -> None:
    """Have SGLang fork the workers of the server that this process is about to start.

    Raises:
        AttributeError: for an SGLang whose names are others, so that a change is noticed.
    """
    from sglang.srt.entrypoints import engine

    set_up = engine._set_envs_and_config

    def set_up_to_fork(*args: Any, **kwargs: Any) -> None:
        set_up(*args, **kwargs)
        multiprocessing.set_start_method("fork", force=True)

    engine._set_envs_and_config = set_up_to_fork
    os.register_at_fork(after_in_child=_forget_the_server)


def _forget_the_server() -> None:
    tempfile.tempdir = None
    for number in _SERVER_SIGNALS:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
