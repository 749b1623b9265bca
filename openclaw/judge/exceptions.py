"""What can go wrong between the runtime and an engine, by whose fault it is."""

from __future__ import annotations

from openclaw.exceptions import OpenClawError


class JudgeError(OpenClawError):
    """Base of everything that keeps a turn from being judged."""


class EngineUnavailableError(JudgeError):
    """The engine could not be reached, timed out or answered 5xx: the turn is judged again later."""


class EngineRefusedError(JudgeError):
    """The engine refused the request (4xx): asking again gives the same answer."""


class TeacherMismatchError(JudgeError):
    """The engine scored other tokens than it was given; the log-probabilities cannot be used."""
