"""Errors of the runtime that a person can act on, grouped by cause.

`openclaw.gateway.errors` has the errors with an HTTP status, `openclaw.ledger.exceptions` those of the ledger.
"""

from __future__ import annotations

from groundwork.exceptions import ConfigError as ConfigError  # for methods and judges, which import it from here


class OpenClawError(Exception):
    """Base of the runtime's own errors; what a person typed wrongly is a `ConfigError`."""


class NoRunError(OpenClawError):
    """There is no run at a place; the message says what to type."""


class EngineError(OpenClawError):
    """The policy engine failed."""


class EngineAwayError(EngineError):
    """The engine was unreachable for as long as requests may wait."""


class EngineRejectedError(EngineError):
    """The engine refused the request (4xx); a retry would get the same answer."""


class EngineBrokeOffError(EngineError):
    """The engine went away within a reply; the tokens sampled before were delivered.

    ``while_working`` says whether it had accepted the request, and ended before the end of the reply.
    """

    while_working = False


class EngineReportedError(EngineBrokeOffError):
    """A living engine said that it failed, or stopped, the request; ``status`` is its code, or None."""

    def __init__(self, message: str, status: int | None) -> None:
        super().__init__(message)
        self.status = status


class EngineDiedError(EngineError):
    """The engine ended more than once while it worked on the request, which may be the cause."""


class EngineProtocolError(EngineError):
    """The engine's answer violates the format of `/generate`."""


class VersionRefusedError(EngineError):
    """An earlier version of the weights cannot answer, or not now; ``status`` is the HTTP status that says so."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class JudgeError(OpenClawError):
    """Base of all failures to judge a turn."""


class EngineUnavailableError(JudgeError):
    """The engine was unreachable, timed out or answered 5xx; the turn is judged again later.

    ``retry_after`` is how many seconds it asked to be left alone.
    """

    def __init__(self, message: str, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class EngineRefusedError(JudgeError):
    """The engine refused the request (4xx); a retry would get the same answer."""


class TeacherMismatchError(JudgeError):
    """The engine scored other tokens than it was given; the log-probabilities are unusable."""
