"""Why an episode has no result."""

from __future__ import annotations


class EpisodeLost(Exception):
    """The infrastructure failed, not the agent: there is no reward, and the task must be sampled again.

    Attributes:
        reason: one word for counters: the kind of the error, or ``verdict``.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
