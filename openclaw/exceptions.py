"""Errors of the runtime that a person can act on, by whose fault they are.

Those with an HTTP status are in `openclaw.gateway.errors`, those of the ledger in `openclaw.ledger.exceptions`.
"""

from __future__ import annotations


class OpenClawError(Exception):
    """Base of the runtime's own errors."""


class ConfigError(OpenClawError, ValueError):
    """An environment variable has a value that cannot be used; the message names it and says what to type."""


class EngineError(OpenClawError):
    """The policy engine did not do what was asked."""


class EngineAwayError(EngineError):
    """The engine could not be reached within the time that requests are held."""


class EngineRejectedError(EngineError):
    """The engine refused the request (4xx): asking again gives the same answer."""


class EngineBrokeOffError(EngineError):
    """The engine went away in the middle of a reply; what it had sampled until then was delivered."""


class EngineProtocolError(EngineError):
    """The engine answered with something that is not what `/generate` promises."""


class JudgeError(OpenClawError):
    """Base of everything that keeps a turn from being judged."""


class EngineUnavailableError(JudgeError):
    """The engine could not be reached, timed out or answered 5xx: the turn is judged again later."""


class EngineRefusedError(JudgeError):
    """The engine refused the request (4xx): asking again gives the same answer."""


class TeacherMismatchError(JudgeError):
    """The engine scored other tokens than it was given; the log-probabilities cannot be used."""
