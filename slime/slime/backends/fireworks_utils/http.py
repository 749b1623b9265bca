"""One connection to Fireworks: the key in its headers, patience with what passes, and the package tinker's errors for what does not.

Guarantees: the key comes from the environment and goes into headers alone. 408, 429, 5xx and a lost connection are tried again, after
what ``Retry-After`` says; every other refusal is raised at once.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Mapping
from typing import Any

import httpx
import tinker

from groundwork.exceptions import ConfigError
from groundwork.process import Stopped, StopRequested
from slime.arguments.fireworks import ADDRESS, KEY

USUAL_ADDRESS = "https://api.fireworks.ai"
PASSING = frozenset({408, 429, 500, 502, 503, 504})
PATIENCE_SECONDS = 300.0
LONGEST_PAUSE, READ_SECONDS = 30.0, 600.0
CONNECTIONS = 256


class Connection:
    """Owns the HTTP connections to one address. Thread-safe.

    Attributes:
        address: where Fireworks answers.
    """

    def __init__(self, stop: StopRequested | None = None, patience: float = PATIENCE_SECONDS) -> None:
        """``stop``: a signal that ends pauses with `Stopped`; ``patience``: seconds for which what passes is tried again.

        Raises:
            ConfigError: there is no key.
        """
        key = os.environ.get(KEY)
        if not key:
            raise ConfigError(f"--train-backend fireworks needs a key with training rights; type: export {KEY}=fw_...")
        self.address = (os.environ.get(ADDRESS) or USUAL_ADDRESS).rstrip("/")
        self.stop, self._patience, self._ended = stop, patience, threading.Event()
        try:
            self._client = httpx.Client(
                base_url=self.address,
                headers={"Authorization": f"Bearer {key}", "X-API-Key": key},
                timeout=httpx.Timeout(30.0, read=READ_SECONDS),
                limits=httpx.Limits(max_connections=CONNECTIONS),
            )
        except (httpx.InvalidURL, ValueError, UnicodeError) as error:
            raise ConfigError(
                f"{ADDRESS} or {KEY} cannot be used ({type(error).__name__}); export them again"
            ) from None

    def close(self) -> None:
        """End pauses and connections."""
        self._ended.set()
        self._client.close()

    def pause(self, seconds: float) -> None:
        """Wait.

        Raises:
            Stopped: the connection is closed, or a signal arrived.
        """
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            if self._ended.wait(min(left, 1.0)) or self.stop:
                raise Stopped

    def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        also: frozenset[int] = frozenset(),
        headers: Mapping[str, str] | None = None,
        query: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Return the answer, which is a success or has a status of ``also``.

        Raises:
            tinker.APIStatusError: Fireworks refuses, or did so for as long as patience lasts.
            tinker.APIConnectionError: nobody answers.
            Stopped: as `pause`.
        """
        since, pause = time.monotonic(), 1.0
        while True:
            lost, answer = None, None
            try:
                answer = self._client.request(method, path, json=body, headers=headers, params=query)
            except httpx.TransportError as error:
                lost = error
            if answer is not None and (answer.is_success or answer.status_code in also):
                return answer
            passes = answer is None or answer.status_code in PASSING
            if not passes or time.monotonic() - since > self._patience:
                break
            self.pause(min(LONGEST_PAUSE, _asked_pause(answer) or pause))
            pause *= 2
        if answer is None:
            request = httpx.Request(
                method, f"{self.address}{path}"
            )  # without headers, so that no trace can show the key
            words = f"nobody answers at {self.address} ({type(lost).__name__})"
            raise tinker.APIConnectionError(message=words, request=request) from lost
        raise refusal(answer, f"{method} {path}")


def body_of(answer: httpx.Response) -> dict[str, Any]:
    """Return the JSON object that an answer holds.

    Raises:
        tinker.TinkerError: it holds something else, so that whoever answers is not Fireworks.
    """
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        request = answer.request
        raise tinker.TinkerError(
            f"{request.method} {request.url} answers {answer.status_code} without a JSON object; check {ADDRESS}"
        )
    return found


def refusal(answer: httpx.Response, asked: str) -> tinker.APIStatusError:
    """Return the error of a refusal, without the request and its headers."""
    bare = httpx.Response(answer.status_code, request=httpx.Request("GET", str(answer.request.url)))
    return tinker.APIStatusError(f"{answer.status_code} for {asked}: {words_of(answer)}", response=bare, body=None)


def words_of(answer: httpx.Response) -> str:
    """Return what Fireworks says is wrong, in one line."""
    try:
        said = answer.json()
    except ValueError:
        said = answer.text
    while isinstance(said, dict):
        said = said.get("error") or said.get("message") or said.get("detail") or "no reason given"
    return " ".join(str(said).split())[:500] or "no reason given"


def _asked_pause(answer: httpx.Response | None) -> float | None:
    try:
        return float(answer.headers["retry-after"]) if answer is not None else None
    except (KeyError, ValueError):
        return None
