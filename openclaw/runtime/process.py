"""Supervise the runtime process (gateway and judge loop).

It is a child of the process that runs the rollout function. Guarantees:

* A `RuntimeSupervisor` has at most one child. From `start` to `stop` it restarts a child that dies, and counts the restarts.
* A child that gives no answer for ``frozen_seconds`` is ended and restarted. Its Python stacks go to its log first.
* The log names the reason of each restart and the requests that were under way.
* The child dies with its parent, however the parent ends (`groundwork.process`).
* More than `DEATHS_ALLOWED` restarts within `DEATHS_WINDOW_SECONDS` are an error that shows the end of the child's log.

A process counts as frozen only after `MIN_MISSES` requests in a row without any answer, over the whole
bound. Time during which the watcher itself stood still (a suspended machine, a starved thread) does not count.
"""

from __future__ import annotations

import http.client
import logging
import os
import signal
import socket
import ssl
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from groundwork.network import find_available_port
from openclaw.exceptions import OpenClawError
from openclaw.gateway import under_way

MIN_MISSES = 3
LOOKS_PER_BOUND = 10
WAITS_PER_BOUND = 4
LATE = 2.0
"""A watcher that comes this many times later than it meant to stood still itself."""
STACK_SECONDS = 2.0
MAX_NAMED = 20
STOPPED = "T"


class Silence:
    """Counts the silence of one process; used from one thread."""

    def __init__(self, bound: float, clock: Callable[[], float] = time.monotonic) -> None:
        """Count up to ``bound`` seconds."""
        self.bound = bound
        self.pause = bound / LOOKS_PER_BOUND
        """Seconds between two looks."""
        self.patience = bound / WAITS_PER_BOUND
        """Seconds that a look waits for an answer."""
        self.seconds = 0.0
        self._misses = 0
        self._clock = clock
        self._last = clock()

    @property
    def due(self) -> bool:
        """Whether it is time for the next look."""
        return self._clock() - self._last >= self.pause

    def look(self, answers: Callable[[], bool]) -> bool:
        """Ask once, and return whether the process is frozen."""
        answered = answers()
        now = self._clock()
        gap, self._last = now - self._last, now
        meant = self.pause + self.patience
        if answered or gap > LATE * meant:
            self.seconds, self._misses = 0.0, 0
        else:
            self.seconds, self._misses = self.seconds + min(gap, meant), self._misses + 1
        return self.seconds >= self.bound and self._misses >= MIN_MISSES


def write_stack(pid: int, log_path: Path) -> None:
    """Let a process write its Python stacks to its log, and wait until it has; see `openclaw.runtime.__main__`.

    A process that a signal has stopped cannot: its log stays as it is.
    """
    before = _size(log_path)
    try:
        os.kill(pid, signal.SIGUSR1)
    except ProcessLookupError:
        return
    deadline = time.monotonic() + STACK_SECONDS
    while _size(log_path) == before and time.monotonic() < deadline and not is_stopped(pid):
        time.sleep(0.02)
    time.sleep(0.05)  # the other threads' stacks follow


def is_stopped(pid: int) -> bool:
    """Return whether a signal has stopped the process (SIGSTOP, a debugger)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == STOPPED
    except (OSError, IndexError):
        return False


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


logger = logging.getLogger(__name__)

LOG_TAIL_CHARACTERS = 3000
PORT_POLL_SECONDS = 0.2
PORT_PATIENCE_SECONDS = 15.0
"""For the runtime process of a rollout manager that was killed; it ends with its lifeline, within seconds."""
DEATHS_ALLOWED = 5
DEATHS_WINDOW_SECONDS = 600.0
FROZEN_SECONDS = 20.0
RESTARTING = "restarting it (restart"
"""In the log, before the number of a restart; `openclaw.doctor` counts them."""


class Child(Protocol):
    """The part of `groundwork.process.ChildProcess` that the supervisor uses."""

    @property
    def pid(self) -> int:
        """The process id."""
        ...

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
    return _status(url, timeout, context) == 200


def responds(url: str, timeout: float) -> bool:
    """Return whether a GET of ``url`` gets any answer, also a refusal or one with an unknown certificate."""
    anybody = ssl.create_default_context()
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE
    return _status(url, timeout, anybody) is not None


def _status(url: str, timeout: float, context: ssl.SSLContext | None) -> int | None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(url, timeout=timeout) as response:
            return response.status
    except urllib.error.HTTPError as error:
        return error.code
    except (http.client.HTTPException, OSError):  # urllib's own errors are OSErrors
        return None


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


def reserve_port(host: str, port: int, patience: float = 0.0, setting: str = "PORT") -> socket.socket:
    """Reserve a port on which a gateway will listen only minutes later; another reservation of it fails meanwhile.

    Args: those of `free_port`.

    Returns:
        An abstract Unix socket, which holds the reservation until it is closed or the process ends.

    Raises:
        OSError: as `free_port`, and if another process of this machine has the reservation.
    """
    deadline = time.monotonic() + patience
    free_port(host, port, patience, setting)
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    while port:
        try:
            claim.bind(f"\0openclaw-gateway-{port}")
            break
        except OSError as error:
            if time.monotonic() < deadline:
                time.sleep(PORT_POLL_SECONDS)
                continue
            claim.close()
            raise OSError(
                f"another run that is starting will listen on {host}:{port}; wait for it, or set {setting} to a free port"
            ) from error
    return claim


class RuntimeSupervisor:
    """Owns the child process and the thread that restarts it."""

    def __init__(
        self,
        spawn: Callable[[], Child],
        *,
        health_url: str,
        log_path: Path,
        ready: Callable[[str], bool] = answers,
        responds: Callable[[str, float], bool] = responds,
        frozen_seconds: float = FROZEN_SECONDS,
        requests_path: Path | None = None,
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
            responds: returns whether a URL gives any answer within so many seconds.
            frozen_seconds: a serving process without any answer for so long is frozen.
            requests_path: file of the process's requests under way (`openclaw.gateway.under_way`).
            start_timeout: seconds from spawning to the first 200.
            poll_seconds: interval between checks of the child.
            deaths_allowed: deaths within ``deaths_window`` that lead to a restart; one more is an error.
            deaths_window: seconds.
            clock: returns monotonic seconds.
        """
        self.restarts = 0
        """Restarts of a process that died or was frozen."""
        self.frozen = 0
        """Restarts of a frozen process."""
        self._spawn = spawn
        self._health_url = health_url
        self._log_path = log_path
        self._ready = ready
        self._responds = responds
        self._frozen_seconds = frozen_seconds
        self._requests_path = requests_path
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

    def under_way(self) -> list[under_way.InFlightRequest]:
        """Return the requests that the process answers now, oldest first."""
        return [] if self._requests_path is None else under_way.read(self._requests_path)

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
            frozen = ""
            if self._wait_until_serving(self._child):
                self._serving.set()
                frozen = self._watch_silence(self._child)
                self._serving.clear()
            if self._stopping.is_set():
                return
            if frozen:
                self.frozen += 1
                logger.warning("%s; ending it", frozen)
                write_stack(self._child.pid, self._log_path)
            self._child.stop(0.0 if frozen else 5.0)
            deaths.append(self._clock())
            while deaths[0] < deaths[-1] - self._deaths_window:
                deaths.popleft()
            if len(deaths) > self._deaths_allowed:
                self._error = RuntimeFailedError(self._describe(len(deaths)))
                return
            self.restarts += 1
            reason = frozen or "the runtime process ended"
            logger.error("%s; %s %d)%s\n%s", reason, RESTARTING, self.restarts, self._last_requests(), self._tail())

    def _watch_silence(self, child: Child) -> str:
        """Return once the child ends or `stop` is called, or, with words, once it is frozen."""
        silence = Silence(self._frozen_seconds)
        while child.alive() and not self._stopping.wait(self._poll_seconds):
            if (
                silence.due
                and silence.look(lambda: self._responds(self._health_url, silence.patience))
                and child.alive()
            ):
                stopped = " and is stopped by a signal" if is_stopped(child.pid) else ""
                return (
                    f"the runtime process is frozen: it has given no answer for {silence.seconds:.0f} s{stopped} "
                    f"(OPENCLAW_FROZEN_SECONDS={self._frozen_seconds:g})"
                )
        return ""

    def _last_requests(self) -> str:
        """Return the requests that the last child had, and forget them."""
        if self._requests_path is None:
            return ""
        content = self.under_way()
        under_way.delete(self._requests_path)
        if not content:
            return "; no requests under way"
        now = time.time()
        named = "; ".join(request.line(now) for request in content[:MAX_NAMED])
        more = f"; and {len(content) - MAX_NAMED} more" if len(content) > MAX_NAMED else ""
        return f"; requests under way ({len(content)}): {named}{more}"

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
