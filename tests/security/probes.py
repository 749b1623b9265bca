"""Measures what others notice of an attack: ``python -m tests.security.probes URL``, as a process of its own.

It asks for ``/healthz`` and, as another user, for the first token of a stream, until its standard input ends; then it prints
the seconds of each as JSON. The key of the user is in the environment, where no list of processes shows it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from tests.security.server import ANSWER_SECONDS, CHAT, Server, environment

HEALTH_PAUSE = 0.02
TOKEN_PAUSE = 0.05
KEY = "OPENCLAW_PROBE_KEY"
QUESTION = {"messages": [{"role": "user", "content": "how late"}], "stream": True, "max_tokens": 4}


@dataclass(frozen=True)
class Noticed:
    """What others noticed, in seconds: the slowest 1% of first tokens begin at ``first_token``."""

    first_token: float
    healthz: float
    refused: int

    @staticmethod
    def of(measured: dict[str, list[float | None]]) -> Noticed:
        """Summarise what a probe printed; None stands for a refusal."""
        tokens = sorted(value for value in measured["first_token"] if value is not None)
        health = [value for value in measured["healthz"] if value is not None]
        refused = measured["first_token"].count(None) + measured["healthz"].count(None)
        return Noticed(tokens[int(len(tokens) * 0.99)] if tokens else 0.0, max(health, default=0.0), refused)


class Probe:
    """A probe process; `end` stops it and returns what it measured."""

    def __init__(self, server: Server, owner: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.security.probes", server.url],
            env=environment(**{KEY: server.keys.get(owner, "")}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()  # it measures from here on

    def end(self) -> Noticed:
        """Stop measuring."""
        output, _ = self._process.communicate()
        return Noticed.of(json.loads(output))


def _healthz(client: httpx.Client) -> float | None:
    """Return the seconds of one ``GET /healthz``, or None if it was refused."""
    began = time.monotonic()
    return time.monotonic() - began if client.get("/healthz").status_code == 200 else None


def _first_token(client: httpx.Client) -> float | None:
    """Return the seconds to the first token of a stream, or None if there was none; read the rest."""
    began, first = time.monotonic(), None
    with client.stream("POST", CHAT, json=QUESTION) as response:
        for line in response.iter_lines():
            if first is None and '"content":"' in line and '"content":""' not in line:
                first = time.monotonic() - began
    return first


def _repeat(
    ask: Callable[[httpx.Client], float | None],
    client: httpx.Client,
    pause: float,
    over: threading.Event,
    into: list[Any],
) -> None:
    while not over.wait(pause):
        began = time.monotonic()
        try:
            into.append(ask(client))
        except httpx.TimeoutException:
            into.append(time.monotonic() - began)
        except httpx.HTTPError:
            into.append(None)


def main() -> None:
    """Measure until standard input ends."""
    key = os.environ.get(KEY)
    headers = {"authorization": f"Bearer {key}"} if key else {}
    measured: dict[str, list[Any]] = {"healthz": [], "first_token": []}
    over = threading.Event()
    with httpx.Client(base_url=sys.argv[1], headers=headers, trust_env=False, timeout=ANSWER_SECONDS) as client:
        _first_token(client)
        threads = [
            threading.Thread(target=_repeat, args=(_healthz, client, HEALTH_PAUSE, over, measured["healthz"])),
            threading.Thread(target=_repeat, args=(_first_token, client, TOKEN_PAUSE, over, measured["first_token"])),
        ]
        for thread in threads:
            thread.start()
        print("ready", flush=True)
        sys.stdin.read()
        over.set()
        for thread in threads:
            thread.join()
    print(json.dumps(measured))


if __name__ == "__main__":
    main()
