"""What the door of one episode saw of the gateway: whether what became of the episode may be the gateway's fault.

Guarantees: a call failed if the gateway was out of reach, broke off, answered with a status of 500 or more, ended a stream by
such an error, or said that engines died under the request. The gateway's other refusals are answers like any other. A failed
call is forgiven once a reply that began after it succeeds: then the program had tried again. A call that the
program itself gave up says nothing. A failure is known before the program sees it, so no program can end too early for that.

A program whose time was over had less of it if the gateway failed it in between, hangs, or waited for an engine, so `Outage`
forgives nothing.
"""

from __future__ import annotations

import json
from typing import Any

import httpx

CHAT = "/v1/chat/completions"
REPLIES = frozenset({CHAT, "/v1/messages", "/v1/responses"})
"""Routes that answer with a reply of the model, each in its API."""
TAIL = 8192
"""Bytes of an answer's end, or of an event's begin, that are looked at; an error of the gateway's is shorter."""
EVENTS = "text/event-stream"
ENDS = (b"data: [DONE]", b"event: message_stop\n", b"event: response.completed\n", b"event: response.incomplete\n")
ERRORS = (b'data: {"error"', b"event: error\n", b"event: response.failed\n")
"""How the last event of a stream begins, in each API."""
ENGINE_DIED = "engine_died"
"""Code of a 400, so that nobody repeats a request that may have killed the engines."""
REFUSED = "invalid_request_error"
"""Type of a stream's error that is not the gateway's fault."""
ANSWER_S = 10.0
"""A gateway that does not tell its health within so many seconds hangs."""
MIN_AWAY_SECONDS = 1.0
"""A shorter wait for an engine is not held against the gateway."""
AWAY = "engine_away_seconds"
"""Field of the gateway's health: for how long requests have waited for an engine since it started."""


class GatewayHealth:
    """The calls of one door."""

    def __init__(self) -> None:
        self._begun = 0
        self._failed_at = 0
        self._problem: str | None = None
        self._first: str | None = None

    @property
    def first_problem(self) -> str | None:
        """What the gateway failed in first, forgiven or not."""
        return self._first

    @property
    def problem(self) -> str | None:
        """What the gateway failed in last, if no later reply succeeded; None if nothing is held against it."""
        return self._problem

    def call(self, path: str) -> Call:
        """Return the record of a call that begins now."""
        self._begun += 1
        return Call(self, self._begun, path in REPLIES)

    def failed(self, problem: str) -> None:
        """Note a failure."""
        self._failed_at = self._begun
        self._problem = problem
        self._first = self._first or problem

    def succeeded(self, number: int) -> None:
        """Note that the reply with this number was answered."""
        if number > self._failed_at:
            self._problem = None


class Call:
    """One call; tell it what comes, before the program gets it."""

    def __init__(self, health: GatewayHealth, number: int, reply: bool) -> None:
        self._health, self._number, self._reply = health, number, reply
        self._status = 0
        self._events = self._known = False
        self._tail = b""

    def began(self, status: int, content_type: str) -> None:
        """Note the head of the answer."""
        self._status = status
        self._events = content_type.startswith(EVENTS)
        if status >= 500:
            self._failed(f"it answered with status {status}")

    def part(self, data: bytes) -> None:
        """Note a piece of the body."""
        if not self._events:
            self._tail = (self._tail + data)[-TAIL:]
            return
        *whole, self._tail = (self._tail + data).split(b"\n\n")
        if len(self._tail) > TAIL:
            self._tail = self._tail[:TAIL] + self._tail[-1:]
        for event in whole:
            self._read_event(event)

    def ended(self) -> None:
        """Note that the answer is complete."""
        if self._known:
            return
        if self._events:
            self._failed("it ended a reply before its end")
        elif self._status >= 400:
            self._refused(_error(self._tail))
        else:
            self._succeeded()

    def broke(self, reason: str) -> None:
        """Note that the connection to the gateway failed."""
        self._failed(reason)

    def _read_event(self, event: bytes) -> None:
        """Look whether an event ends the stream."""
        if event.startswith(ENDS):
            self._succeeded()
        elif event.startswith(ERRORS):
            self._refused(_error(event[event.index(b"data: ") + len(b"data: ") :]))

    def _refused(self, error: dict[str, Any]) -> None:
        """Note an error that the gateway itself answered."""
        if error.get("code") == ENGINE_DIED:
            self._failed("its engines died under a request")
        elif self._events and error.get("type") != REFUSED:
            self._failed(f"it ended a reply with the error {error.get('code') or error.get('type')!r}")
        self._known = True

    def _failed(self, problem: str) -> None:
        if not self._known:
            self._known = True
            self._health.failed(problem)

    def _succeeded(self) -> None:
        if not self._known:
            self._known = True
            if self._reply:
                self._health.succeeded(self._number)


class Outage:
    """Whether a gateway could answer during the whole of a run; `begin` before it, `problem` after it."""

    def __init__(self, base_url: str, health: GatewayHealth) -> None:
        """Prepare; ``health``: of the run's door."""
        self._base_url, self._health = base_url, health
        self._before = 0.0

    async def begin(self) -> None:
        """Ask the gateway how long it has waited for engines so far."""
        self._before = await _away_seconds(self._base_url) or 0.0

    async def problem(self) -> str | None:
        """Return what the run lost time to, or None."""
        if self._health.first_problem is not None:
            return self._health.first_problem
        now = await _away_seconds(self._base_url)
        if now is None:
            return f"it does not say within {ANSWER_S:g} s how it is"
        waited = now - self._before
        return f"requests waited for its engine for {waited:.1f} s of the run" if waited >= MIN_AWAY_SECONDS else None


async def _away_seconds(base_url: str) -> float | None:
    """Return how long the gateway has waited for engines, 0 if it does not tell; None if it cannot answer."""
    try:
        async with httpx.AsyncClient(timeout=ANSWER_S, trust_env=False) as client:
            answer = await client.get(f"{base_url}/healthz")
        if answer.status_code >= 500:
            return None
        health = answer.json()
    except httpx.HTTPError:
        return None
    except ValueError:
        return 0.0
    seconds = health.get(AWAY) if isinstance(health, dict) else None
    return float(seconds) if isinstance(seconds, (int, float)) else 0.0


def _error(body: bytes) -> dict[str, Any]:
    """Return the error of a body, or of a response that failed; empty if there is none."""
    try:
        told = json.loads(body)
        error = told["response"]["error"] if "response" in told else told["error"]
    except (ValueError, KeyError, TypeError):
        return {}
    return error if isinstance(error, dict) else {}
