"""Errors of the training core. Each message says what is wrong and what to type instead."""

from __future__ import annotations

from groundwork.exceptions import ConfigError

ConfigurationError = ConfigError
"""The name by which plugins know it."""


class SlimeError(Exception):
    """Base of the core's own errors; what a person typed wrongly is a `ConfigError`."""


class PluginError(SlimeError, ImportError):
    """A plugin was not found, or returned something that violates its contract."""


class DataUsedError(SlimeError, RuntimeError):
    """A rollout function raises this instead of returning a batch: its data is used, so the run is done.

    The message says what was used and what was not.
    """


class SampleError(SlimeError, ValueError):
    """A sample's per-token lists do not match its tokens."""


class EngineError(SlimeError, RuntimeError):
    """An inference engine did not start, died, or refused a command."""


class EngineNodeLostError(EngineError):
    """An actor on one of the engine's machines is gone or does not answer; the engine must be recreated."""


class UntranslatableError(EngineError):
    """A request of SGLang's form that the engine behind a translator cannot answer as it says."""


class WeightsDifferError(SlimeError, RuntimeError):
    """After a push, a tensor on an engine differs from the trainer's."""


class TrainerError(SlimeError, RuntimeError):
    """A training rank died or could not take the step."""


class LostError(TrainerError):
    """A process or machine of the run is gone; the run can continue from its last checkpoint."""


class RankLostError(LostError):
    """A training rank died or lost its data; all ranks must restart.

    Attributes:
        method: what the ranks were doing.
    """

    def __init__(self, message: str, method: str = "") -> None:
        super().__init__(message)
        self.method = method


class ManagerLostError(LostError):
    """The rollout manager died, taking its engines and batches with it."""


class NodeLostError(LostError):
    """A machine that hosted part of the run left the cluster."""


class NodeError(SlimeError, RuntimeError):
    """A cluster or a machine is missing or busy."""


class CheckpointError(SlimeError, RuntimeError):
    """A checkpoint is missing, incomplete or from another run."""


class PeopleError(SlimeError, RuntimeError):
    """The book of people's adapters is unreadable, or what it should name is not on disk."""


class ForgottenError(PeopleError):
    """A version is of before its person was forgotten."""


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
        """Make the error picklable, so that Ray can transfer it."""
        return type(self), (self.url, self.status, self.body)
