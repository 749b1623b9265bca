"""Errors of environments and leases: one class per kind, the same on the server, on the wire and in the client.

Guarantee: an error that crosses the network arrives as the class it was raised as, with the same fields.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from groundwork.exceptions import ConfigError as ConfigError  # for environments, which import it from here

Kind = Literal["invalid", "capacity", "not_found", "timeout", "infra", "internal"]


class AgentError(Exception):
    """Base of all errors that a client of environments can receive.

    Attributes:
        kind: what sort of error it is; decides the class.
        code: machine-readable name of the problem, such as ``unknown_task``.
        message: what is wrong, and what to do about it.
        retryable: whether the same request, with its ``request_id``, may succeed if it is sent again.
        retry_after_s: seconds to wait before a retry; None if the server does not know.
        executed: whether the operation took its ``seq``, so that the next one is ``seq + 1``.
    """

    kind: ClassVar[Kind] = "internal"

    def __init__(
        self,
        message: str,
        *,
        code: str,
        retryable: bool = False,
        retry_after_s: float | None = None,
        executed: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.retryable = retryable
        self.retry_after_s = retry_after_s
        self.executed = executed

    def again(self) -> Self:
        """Return a copy to raise, so that no two callers share a traceback."""
        return type(self)(
            self.message,
            code=self.code,
            retryable=self.retryable,
            retry_after_s=self.retry_after_s,
            executed=self.executed,
        )

    def stored(self) -> Self:
        """Return a copy that a repeated request gets: the operation took its ``seq``, and a retry changes nothing."""
        return type(self)(self.message, code=self.code, executed=True)


class InvalidError(AgentError):
    """The request is wrong; sending it again gives the same answer."""

    kind = "invalid"


class CapacityError(AgentError):
    """No slot, memory or processor became free in time, or the pool is too small for the task."""

    kind = "capacity"


class NotFoundError(AgentError):
    """There is no such task or lease; a lease may have expired."""

    kind = "not_found"


class DeadlineError(AgentError):
    """A deadline passed. If retryable, the operation still runs and a retry waits for it."""

    kind = "timeout"


class InfraError(AgentError):
    """The infrastructure failed, not the agent; take a new lease and sample the task again."""

    kind = "infra"


class InternalError(AgentError):
    """A defect of the server or of an environment; the server's log has the traceback."""

    kind = "internal"


CLASSES: dict[Kind, type[AgentError]] = {
    item.kind: item for item in (InvalidError, CapacityError, NotFoundError, DeadlineError, InfraError, InternalError)
}
