"""One webhook that tells a person what cannot wait: ``OPENCLAW_ALERT_WEBHOOK``.

    fuse      training is paused
    refused   the gate refused an update, also with a red certificate
    disk      the disk of the run is nearly full
    engine    an engine, a rank or a machine died
    ended     the run ended with an error

Guarantees: `tell` never waits, whatever the other side does: lines queue, and a thread of their own sends them, each with at most
`ATTEMPTS` attempts, and to no other address: a redirection is not followed. What cannot be sent or queued is counted in a log.
A line has numbers, causes and the run's name, never a word of a conversation or a person's name. The address is a secret, and no log or error has it. Without the variable nothing happens.
"""

from __future__ import annotations

import http.client
import json
import logging
import os
import queue
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from groundwork.exceptions import ConfigError
from groundwork.network import is_http_url
from groundwork.paused import Paused, paused, paused_people

logger = logging.getLogger(__name__)

VARIABLE = "OPENCLAW_ALERT_WEBHOOK"
ATTEMPTS = 3
ANSWER_SECONDS = 5.0
PAUSE_SECONDS = 2.0
LOOK_SECONDS = 10.0
"""Between looks at the disk and at the notes of pauses."""
END_SECONDS = 15.0
"""How long the end of a run waits for lines on their way."""
WAITING = 64
"""Lines that wait at most; more of them are counted and dropped."""
LOW_BYTES, LOW_SHARE = 2 * 2**30, 0.02
ENOUGH = 1.5
"""Times the bound: so much room ends a shortage, so that a disk at the bound is told once."""
NO_USE = frozenset({301, 302, 303, 307, 308, 400, 401, 403, 404, 405, 410})
"""Statuses that a second attempt would get again."""


class _Here(urllib.request.HTTPRedirectHandler):
    """Follows no redirection: it would turn the line into a request without one, to an address that nobody chose."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        """Leave the answer as it is."""


class Alerts:
    """Sends lines to one address; owns its thread."""

    def __init__(self, url: str, run_dir: Path, disks: Sequence[Path]) -> None:
        """Check the address, and remember what is known already; send nothing.

        Args:
            url: of the webhook.
            run_dir: the run's folder, in which notes say that training is paused.
            disks: folders whose disks the run fills.

        Raises:
            ConfigError: the address is none.
        """
        if not is_http_url(url):
            raise ConfigError(f"{VARIABLE} is no HTTP address; write one such as https://HOST/PATH")
        self._url = url
        self._run_dir, self._disks = run_dir, [*dict.fromkeys(disks)]
        self._lines: queue.Queue[tuple[str, str] | None] = queue.Queue(WAITING)
        self._ends = threading.Event()
        self._dropped = 0
        self._known = set(self._pauses())
        self._short: set[Path] = set()
        self._opener = urllib.request.build_opener(_Here)
        self._thread = threading.Thread(target=self._work, name="alerts", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def tell(self, kind: str, line: str) -> None:
        """Queue a line about a kind of event; return at once."""
        try:
            self._lines.put_nowait((kind, line))
        except queue.Full:
            self._dropped += 1
            logger.warning("an alert (%s) is dropped, because %d wait; %d so far", kind, WAITING, self._dropped)

    def close(self) -> None:
        """Send what waits, for `END_SECONDS` at most, and end the thread."""
        self._ends.set()
        with suppress(queue.Full):  # the thread sees the event once it has sent them
            self._lines.put_nowait(None)
        self._thread.join(END_SECONDS)

    def _work(self) -> None:
        looked = 0.0
        while True:
            if time.monotonic() - looked >= LOOK_SECONDS:
                looked = time.monotonic()
                for kind, line in self._look():
                    self._send(kind, line)
            try:
                item = self._lines.get(timeout=0 if self._ends.is_set() else LOOK_SECONDS)
            except queue.Empty:
                if self._ends.is_set():
                    return
                continue
            if item is None:
                for kind, line in self._look():  # a pause may be what ends the run
                    self._send(kind, line)
                return
            self._send(*item)

    def _pauses(self) -> dict[tuple[str | None, float], Paused]:
        notes = [paused(self._run_dir), *paused_people(self._run_dir).values()]
        return {(note.person, note.since): note for note in notes if note is not None}

    def _look(self) -> list[tuple[str, str]]:
        """Return lines about pauses and shortages that nobody was told of."""
        lines = []
        try:
            pauses = self._pauses()
        except OSError as error:
            logger.warning("the notes of pauses cannot be read: %s", error)
            pauses = {}
        for key, note in pauses.items():
            if key not in self._known:
                self._known.add(key)
                whose = "" if note.person is None else " of one person"
                lines.append(("fuse", f"training{whose} is paused since step {note.rollout_id}: {note.why}"))
        for folder in self._disks:
            try:
                usage = shutil.disk_usage(folder)
            except OSError:
                continue  # not made yet
            bound = max(LOW_BYTES, LOW_SHARE * usage.total)
            if usage.free < bound and folder not in self._short:
                self._short.add(folder)
                free, total = usage.free / 2**30, usage.total / 2**30
                lines.append(("disk", f"the disk is nearly full: {free:.1f} of {total:.0f} GiB are free"))
            elif usage.free > ENOUGH * bound:
                self._short.discard(folder)
        return lines

    def _send(self, kind: str, line: str) -> None:
        """Post a line, in the form that Slack, Mattermost, Discord and programs of one's own read."""
        text = f"{self._run_dir.name}: {line}"
        body = {"text": text, "content": text, "kind": kind, "run": self._run_dir.name}
        data, why = json.dumps(body).encode(), ""
        for attempt in range(ATTEMPTS):
            if attempt and not self._ends.is_set():
                self._ends.wait(PAUSE_SECONDS * attempt)
            request = urllib.request.Request(self._url, data, {"Content-Type": "application/json"}, method="POST")
            try:
                with self._opener.open(request, timeout=ANSWER_SECONDS):
                    return
            except urllib.error.HTTPError as error:
                error.close()
                why = f"HTTP {error.code}"
                if error.code in NO_USE:
                    break
            except (OSError, ValueError, http.client.HTTPException) as error:  # their texts may name the address
                why = type(error).__name__
        logger.warning("an alert (%s) reached nobody: %s", kind, why)


_alerts: Alerts | None = None


def tell(kind: str, line: str) -> None:
    """Tell a person of an event, if anybody asked for that; return at once.

    ``line``: numbers and causes; no word of a conversation, no name of a person.
    """
    if _alerts is not None:
        _alerts.tell(kind, line)


@contextmanager
def alerting(run_dir: Path, disks: Sequence[Path] = (), environment: Mapping[str, str] = os.environ) -> Generator[None]:
    """Send what the block tells, if `VARIABLE` has an address; see `Alerts`.

    Raises:
        ConfigError: it has one that is none.
    """
    global _alerts
    url = environment.get(VARIABLE)
    if not url:
        yield
        return
    _alerts = Alerts(url, run_dir, [run_dir, *disks])
    _alerts.start()
    try:
        yield
    finally:
        ending, _alerts = _alerts, None
        ending.close()
