"""A server of the Tinker interface as its own process, which a test may kill."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from groundwork.network import find_available_port
from lab.testkit.waiting import wait_until

REPOSITORY = Path(__file__).resolve().parents[2]
START_SECONDS = 300.0
NAME = "tiny"
"""By which programs ask for the model of the server that tests share."""


class TinkerServer:
    """``python -m openclaw.tinker`` on two logical GPUs of the CPU."""

    def __init__(self, model: Path, folder: Path, name: str, *flags: str) -> None:
        """Start nothing yet; ``name``: by which programs ask for ``model``."""
        self.model, self._folder, self._name, self._flags = model, folder, name, flags
        self.port = find_available_port()
        self._starts = 0

    @property
    def url(self) -> str:
        """What programs call TINKER_BASE_URL."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def command(self) -> list[str]:
        """What starts it."""
        return [
            *(sys.executable, "-m", "openclaw.tinker", "--device", "cpu", "--hf-checkpoint", str(self.model)),
            *("--run-dir", str(self._folder / "run"), "--lora-rank", "8", "--num-gpus", "2"),
            *("--actor-num-gpus-per-node", "1", "--rollout-num-gpus", "1", "--served-name", self._name),
            *("--tokenizer-name", str(self.model), *self._flags),
        ]

    @property
    def environment(self) -> dict[str, str]:
        """In which it starts."""
        paths = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "slime")])
        return {**os.environ, "PYTHONPATH": paths, "PORT": str(self.port)}

    def text(self) -> str:
        """What the server has printed since its last start."""
        return self._log.read_text(errors="replace")

    def start(self) -> None:
        """Start the server and wait until it serves."""
        self._starts += 1
        self._folder.mkdir(parents=True, exist_ok=True)
        self._log = self._folder / f"server-{self._starts}.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command, cwd=self._folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        wait_until(self._serves, lambda: f"the server did not come up:\n{self.text()[-3000:]}", START_SECONDS)

    def _serves(self) -> bool:
        assert self._process.poll() is None, f"the server ended:\n{self.text()[-3000:]}"
        return "serving  " in self.text()

    def children(self) -> list[psutil.Process]:
        """Return every process of the server but the first."""
        return psutil.Process(self._process.pid).children(recursive=True)

    def kill(self) -> None:
        """End the server's process with SIGKILL and wait until all that it started has ended."""
        children = self.children()
        self._process.kill()
        self._process.wait()
        _, left = psutil.wait_procs(children, timeout=60)
        assert not left, f"the kill left {left}"

    def stop(self) -> int:
        """End the server with SIGTERM; return its exit status."""
        self._process.terminate()
        return self._process.wait(timeout=120)


@contextmanager
def running(model: Path, folder: Path, name: str, *flags: str) -> Iterator[TinkerServer]:
    """Run a server for the length of the block."""
    server = TinkerServer(model, folder, name, *flags)
    server.start()
    try:
        yield server
    finally:
        server.stop()
