"""A service of the Tinker interface for the demo: our own server, on this machine, with the tiny model.

Guarantees: it ends with the demo. It is started only if ``TINKER_BASE_URL`` names none.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from groundwork.network import find_available_port
from groundwork.process import ChildProcess, spawn
from lab.tiny_demo.launched import HOST, MODEL_NAME, REPOSITORY, RunFailed

ADDRESS, KEY = "TINKER_BASE_URL", "TINKER_API_KEY"
START_SECONDS, STOP_SECONDS, POLL_SECONDS = 300.0, 30.0, 0.2
RANK, LONGEST = 16, 2100


class OwnService:
    """The server; entering starts it and names it in this process's environment."""

    def __init__(self, model: Path, folder: Path) -> None:
        """``model``: that it trains and samples; ``folder``: of its states and its log."""
        self._model, self._folder = model, folder
        self._child: ChildProcess | None = None

    def __enter__(self) -> OwnService:
        """Start it and wait until it serves.

        Raises:
            RunFailed: it ended, or takes too long.
        """
        port, log = find_available_port(host=HOST), self._folder / "service.log"
        paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "slime")])
        self._child = spawn(
            [
                *(sys.executable, "-m", "openclaw.tinker", "--device", "cpu", "--hf-checkpoint", self._model),
                *("--run-dir", self._folder, "--lora-rank", str(RANK), "--max-tokens-per-gpu", str(LONGEST)),
                *("--num-gpus", "2", "--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1"),
                *("--served-name", MODEL_NAME, "--tokenizer-name", self._model),
            ],
            env={**os.environ, "HOST": HOST, "PORT": str(port), "PYTHONPATH": paths},
            log_path=log,
            name="service",
        )
        deadline = time.monotonic() + START_SECONDS
        while "serving  " not in self._child.log_tail(5):
            if not self._child.alive() or time.monotonic() > deadline:
                tail = self._child.log_tail(25)
                self.__exit__()
                raise RunFailed(f"the service did not start; the end of {log}:\n{tail}")
            time.sleep(POLL_SECONDS)
        os.environ[ADDRESS] = f"http://{HOST}:{port}"
        os.environ.setdefault(KEY, "tml-of-the-demo")
        return self

    def __exit__(self, *_: object) -> None:
        """End it."""
        if self._child is not None:
            self._child.stop(STOP_SECONDS)
