"""Supervise the runtime process (gateway and judge loop).

It is a child of the process that runs the rollout function. Guarantees:

* A `RuntimeSupervisor` has at most one child. From `start` to `stop` it restarts a child that dies, and counts the restarts.
* The child dies with its parent, however the parent ends (`slime.utils.process`).
* More than `DEATHS_ALLOWED` deaths within `DEATHS_WINDOW_SECONDS` are an error that shows the end of the child's log.
"""

from __future__ import annotations

import http.client
import logging
import socket
import ssl
import threading
import time
import urllib.request
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from openclaw.exceptions import OpenClawError

logger = logging.getLogger(__name__)

LOG_TAIL_CHARACTERS = 3000
PORT_POLL_SECONDS = 0.2
PORT_PATIENCE_SECONDS = 15.0
"""For the runtime process of a rollout manager that was killed; it ends with its lifeline, within seconds."""
DEATHS_ALLOWED = 5
DEATHS_WINDOW_SECONDS = 600.0


class Child(Protocol):
    """The part of `slime.utils.process.ChildProcess` that the supervisor uses."""

    def alive(self) -> bool:
        """Return whether the process runs."""
        ...

    def stop(self, timeout: float) -> object:
        """End the process group."""
        ...


class RuntimeFailedError(OpenClawError):
    """The runtime process does not stay up."""


def answers(url: str, timeout: float = 1.0, context: ssl.SSLContext | None = None) -> bool:
    """Return whether a GET of ``url`` returns 200, without a proxy; https trusts ``context``."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=timeout) as response:
            return response.status == 200
    except (http.client.HTTPException, OSError):  # urllib's own errors are OSErrors
        return False


def free_port(host: str, port: int, patience: float = 0.0, setting: str = "PORT") -> int:
    """Return ``port``, or a free port for 0.

    Args:
        host: address to listen on.
        port: the wanted port.
        patience: seconds to wait for a process that is about to leave the port.
        setting: the flag or variable that set the port, for the message.

    Raises:
        OSError: another process still listens on ``port`` after that; the message says what to type.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    if not port and family == socket.AF_INET:
        from slime.utils.http_utils import find_available_port  # imports an HTTP client

        return find_available_port(host=host)
    deadline = time.monotonic() + patience
    while True:
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
                return probe.getsockname()[1]
            except OSError as error:
                if time.monotonic() < deadline:
                    time.sleep(PORT_POLL_SECONDS)
                    continue
                raise OSError(
                    f"the gateway cannot listen on {host}:{port} ({error.strerror or error}); set {setting} to a free port"
                ) from error


class RuntimeSupervisor:
    """Owns the child process and the thread that restarts it."""

    def __init__(
        self,
        spawn: Callable[[], Child],
        *,
        health_url: str,
        log_path: Path,
        ready: Callable[[str], bool] = answers,
        start_timeout: float = 300.0,
        poll_seconds: float = 0.25,
        deaths_allowed: int = DEATHS_ALLOWED,
        deaths_window: float = DEATHS_WINDOW_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare a supervisor without starting anything.

        Args:
            spawn: starts the process.
            health_url: URL that returns 200 once the process serves.
            log_path: file with the process's output, shown if it fails.
            ready: returns whether a URL returns 200.
            start_timeout: seconds from spawning to the first 200.
            poll_seconds: interval between checks of the child.
            deaths_allowed: deaths within ``deaths_window`` that lead to a restart; one more is an error.
            deaths_window: seconds.
            clock: returns monotonic seconds.
        """
        self.restarts = 0
        self._spawn = spawn
        self._health_url = health_url
        self._log_path = log_path
        self._ready = ready
        self._start_timeout = start_timeout
        self._poll_seconds = poll_seconds
        self._deaths_allowed = deaths_allowed
        self._deaths_window = deaths_window
        self._clock = clock
        self._child: Child | None = None
        self._error: RuntimeFailedError | None = None
        self._stopping = threading.Event()
        self._serving = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="runtime-supervisor", daemon=True)

    @property
    def api_url(self) -> str:
        """The URL of the OpenAI API that the process serves."""
        return self._health_url.removesuffix("/healthz") + "/v1"

    def start(self) -> None:
        """Start the process and return once it serves.

        Raises:
            RuntimeFailedError: the process does not stay up.
        """
        self._thread.start()
        while not self._serving.wait(self._poll_seconds):
            self.check()

    def check(self) -> None:
        """Raise the supervisor's error if it has given up."""
        if self._error is not None:
            raise self._error

    def stop(self, timeout: float = 15.0) -> None:
        """End the process without a restart."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout + self._start_timeout)
        if self._child is not None:
            self._child.stop(timeout)

    def _watch(self) -> None:
        """Keep one child serving until `stop`; store an error for `check`, or `start` would wait forever."""
        try:
            self._keep_serving()
        except Exception as error:
            logger.exception("the supervisor of the runtime process failed")
            if self._child is not None:
                self._child.stop(5.0)  # nothing would restart it, and the owner may never call `stop`
            self._error = RuntimeFailedError(f"cannot start the runtime process or check its health: {error!r}")

    def _keep_serving(self) -> None:
        deaths: deque[float] = deque()
        while not self._stopping.is_set():
            self._child = self._spawn()
            if self._wait_until_serving(self._child):
                self._serving.set()
                while self._child.alive() and not self._stopping.wait(self._poll_seconds):
                    pass
                self._serving.clear()
            if self._stopping.is_set():
                return
            self._child.stop(5.0)
            deaths.append(self._clock())
            while deaths[0] < deaths[-1] - self._deaths_window:
                deaths.popleft()
            if len(deaths) > self._deaths_allowed:
                self._error = RuntimeFailedError(self._describe(len(deaths)))
                return
            self.restarts += 1
            logger.error("the runtime process ended; restarting it (restart %d)\n%s", self.restarts, self._tail())

    def _wait_until_serving(self, child: Child) -> bool:
        deadline = time.monotonic() + self._start_timeout
        while child.alive() and time.monotonic() < deadline and not self._stopping.is_set():
            if self._ready(self._health_url):
                return True
            self._stopping.wait(self._poll_seconds)
        return False

    def _describe(self, deaths: int) -> str:
        return (
            f"the runtime process ended {deaths} times within {self._deaths_window:g} s and will not be restarted; fix the "
            f"error at the end of {self._log_path}, then continue with --resume:\n{self._tail()}"
        )

    def _tail(self) -> str:
        return self._log_path.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:] if self._log_path.exists() else ""
