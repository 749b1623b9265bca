"""Errors of the training core. Each message says what is wrong and what to type instead."""

from __future__ import annotations


class SlimeError(Exception):
    """Base of every error the core raises on purpose."""


class ConfigurationError(SlimeError, ValueError):
    """Flags or variables that cannot work together; raised before anything starts."""


class PluginError(SlimeError, ImportError):
    """A plugin path that names nothing, or a plugin that returned something else than its contract says."""


class SampleError(SlimeError, ValueError):
    """A sample whose per-token lists do not fit its tokens."""


class EngineError(SlimeError, RuntimeError):
    """An inference engine did not start, died, or refused a command."""


class EngineNodeLostError(EngineError):
    """A machine of an engine has no actor any more, or one that does not answer: the engine has to be made anew."""


class WeightsDifferError(SlimeError, RuntimeError):
    """After a push a tensor of an engine is not the trainer's, bit for bit."""


class TrainerError(SlimeError, RuntimeError):
    """A training rank died or could not take the step."""


class LostError(TrainerError):
    """A process or a machine of the run is gone; the run can go on from its last checkpoint."""


class RankLostError(LostError):
    """A training rank died, or lost the data it was given: all ranks have to start again.

    Attributes:
        method: what the ranks were doing.
    """

    def __init__(self, message: str, method: str = "") -> None:
        super().__init__(message)
        self.method = method


class ManagerLostError(LostError):
    """The rollout manager died, and its engines and batches with it."""


class NodeLostError(LostError):
    """A machine that held a part of the run left the cluster."""


class NodeError(SlimeError, RuntimeError):
    """A cluster or a machine is not there, or not free."""


class CheckpointError(SlimeError, RuntimeError):
    """A checkpoint is missing, incomplete or of another run."""


class HttpStatusError(SlimeError, RuntimeError):
    """A server answered with an error status.

    Attributes:
        status: the HTTP status.
        body: the first characters of the answer.
    """

    def __init__(self, url: str, status: int, body: str) -> None:
        super().__init__(f"{url} answered {status}: {body[:500]}")
        self.url = url
        self.status = status
        self.body = body

    def __reduce__(self):
        """Make the error picklable, so that it crosses a Ray call."""
        return type(self), (self.url, self.status, self.body)
