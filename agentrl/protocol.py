"""The lease protocol: its requests and answers as both sides see them, and the service that answers.

Guarantees: a request with an unknown field, a wrong type or a number out of range is refused. Times are seconds. A
number is finite. An infrastructure error has no score, so it can never be rewarded.

Deadlines nest: client > router > worker > operation. A request's ``timeout_s`` (or ``wait_s``) bounds the operation itself. Each
hop around it waits a little longer (`WORKER_MARGIN_S` and the others), so that the innermost deadline is the one that fires, and
its answer still travels outwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, JsonValue, model_validator

from agentrl.exceptions import CLASSES, AgentError, Kind

MAX_SECONDS = 7200.0
CACHED_STRINGS = "keys"
"""Pydantic keeps up to 16,384 short strings that it has read. Here most are ids that come once."""
RequestId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{8,64}$")]
Seconds = Annotated[float, Field(gt=0, le=MAX_SECONDS)]
JsonObject = dict[str, JsonValue]
MAX_ITEMS = 100_000
"""Most commas and opening brackets of JSON that is read in an event loop; more would hold it up, whatever the bytes."""
Status = Literal["ok", "task_failed", "infra_error", "timeout"]
PASSED = "deadline_passed"
"""Code of the DeadlineError of an operation that took too long in its environment; others are of the way to it."""
WORKER_MARGIN_S = 5.0
"""Of a pool's route."""
ROUTER_MARGIN_S = 8.0
"""Of a router's call to a pool."""
ROUTER_ROUTE_MARGIN_S = 11.0
"""Of a router's own route."""
CLIENT_MARGIN_S = 15.0
"""Of a client's call."""
CONTROL_S = 10.0
"""For calls without an operation: renew, release, status."""


def is_quick(data: bytes | bytearray) -> bool:
    """Return whether JSON of others has so few values that reading it holds an event loop up for 0.3 s at most."""
    return sum(map(data.count, (b",", b"[", b"{"))) <= MAX_ITEMS


class Request(BaseModel):
    """A request body; a retry repeats it word for word, with the same ``request_id``."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, cache_strings=CACHED_STRINGS
    )
    request_id: RequestId


class LeaseRequest(Request):
    """Ask for an environment for one episode of a task, and wait in the queue for up to ``wait_s``.

    Example:
        >>> LeaseRequest(request_id="a" * 32, task_id="swe/1").ttl_s
        60.0
    """

    task_id: Annotated[str, Field(min_length=1, max_length=256)]
    ttl_s: Seconds = 60.0
    wait_s: Annotated[float, Field(ge=0, le=MAX_SECONDS)] = 60.0


class RenewRequest(Request):
    """Keep a lease for ``ttl_s`` from now on."""

    ttl_s: Seconds = 60.0


class OperationRequest(Request):
    """An operation that runs once: the first has ``seq`` 1, each next one the number after."""

    seq: Annotated[int, Field(ge=1)]
    timeout_s: Seconds = 120.0


class ResetRequest(OperationRequest):
    """Start the lease's task from the beginning."""

    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0


class StepRequest(OperationRequest):
    """Act once; what an action contains is up to the environment."""

    action: JsonObject


class EvaluateRequest(Request):
    """Judge the episode and end it; every further call returns the same verdict."""

    timeout_s: Seconds = 600.0


class Answer(BaseModel):
    """An answer; unknown fields, of a newer server, are ignored. On the wire it has ``"ok": true`` besides."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False, cache_strings=CACHED_STRINGS)


class Leased(Answer):
    """A granted lease, with the seconds it was waited for."""

    lease_id: str
    expires_in_s: float
    queued_s: float


class Renewed(Answer):
    """The seconds until the lease expires."""

    expires_in_s: float


class Released(Answer):
    """Whether there was such a lease; its environment is closed afterwards."""

    found: bool


class Observation(Answer):
    """What the agent sees: text, pictures as base64 PNG, and data that the environment defines."""

    text: str = ""
    images: tuple[str, ...] = ()
    data: JsonObject = {}


class StepResult(Answer):
    """The observation after an action; ``done`` by itself, or ``truncated`` by a limit."""

    observation: Observation
    done: bool = False
    truncated: bool = False
    info: JsonObject = {}


class Verdict(Answer):
    """The judgement of an episode.

    Attributes:
        status: ``ok`` or ``task_failed`` is the agent's doing. ``infra_error`` is not: sample the task again.
            ``timeout``: a deadline passed; it has a score only if the environment knows that the agent caused it.
        score: of the task, finite; None if there is nothing to reward.
        passed: number of tests that passed, of ``total``.
        detail: a line for people.

    Example:
        >>> Verdict(status="ok", score=0.5, passed=1, total=2).score
        0.5
        >>> Verdict(status="infra_error", detail="the sandbox is gone").score is None
        True
    """

    status: Status
    score: float | None = None
    passed: int | None = None
    total: int | None = None
    detail: str = ""

    @model_validator(mode="after")
    def _score_fits_the_status(self) -> Self:
        if self.status == "infra_error" and self.score is not None:
            raise ValueError("an infra_error has no score; leave it out")
        if self.status in ("ok", "task_failed") and self.score is None:
            raise ValueError(f"{self.status} needs a score; add one")
        return self


class Ending(StrEnum):
    """Why an episode ended; the value is what records, metadata and reports say."""

    DONE = "done"
    """The environment says that it is over."""
    ENVIRONMENT = "environment"
    """A limit of the environment, such as its number of commands."""
    TURNS = "turns"
    """The number of replies."""
    SAMPLED_TOKENS = "sampled_tokens"
    """The tokens of all replies together."""
    REPLY_TOKENS = "reply_tokens"
    """The tokens of one reply, which was cut off."""
    CONTEXT = "context"
    """The model's context, also after something was left out."""
    SECONDS = "seconds"
    """The time of play."""
    STEP_SECONDS = "step_seconds"
    """The time of one action, which the environment had not finished; it cannot judge then."""
    MALFORMED = "malformed"
    """The number of replies that could not be read."""
    PROGRAM_SECONDS = "program_seconds"
    """The time of an agent program (`agentrl.harness`)."""
    LOST = "lost"
    """The infrastructure failed, so there is no score."""


class PoolStatus(Answer):
    """The load of a pool, or of all workers of a router. Memory in MiB.

    Attributes:
        used: slots that are taken, those of ``closing`` and ``stuck`` environments too.
        stuck: environments that could not be closed yet; their slots stay taken, and closing is tried again.
        accepting: whether new leases are granted.
        workers: of a router, by name; None stands for a worker that does not answer.
    """

    slots: int = 0
    used: int = 0
    waiting: int = 0
    leases: int = 0
    closing: int = 0
    stuck: int = 0
    memory_mib: int = 0
    used_memory_mib: int = 0
    cpu: float = 0.0
    used_cpu: float = 0.0
    tasks: int = 0
    accepting: bool = True
    workers: Mapping[str, PoolStatus | None] = {}

    @property
    def ready(self) -> bool:
        """Whether a lease can be granted now or after a wait."""
        return self.accepting and self.stuck < self.slots


class ErrorBody(BaseModel):
    """An error on the wire; `AgentError` says what the fields mean."""

    kind: Kind
    code: str
    message: str
    retryable: bool
    retry_after_s: float | None = None
    executed: bool = False

    @classmethod
    def of(cls, error: AgentError) -> Self:
        """Return the body of an error."""
        return cls.model_validate({"kind": error.kind, **vars(error)})

    def error(self) -> AgentError:
        """Return the error of a body."""
        return CLASSES[self.kind](**self.model_dump(exclude={"kind"}))


class Refusal(BaseModel):
    """The answer to a request that failed."""

    ok: Literal[False] = False
    error: ErrorBody


class LeaseService(Protocol):
    """Leases of environments.

    The pool itself, a router over several pools, the HTTP client and the in-process client implement it with the same
    guarantees, so code above them does not know which one it has. All raise `agentrl.exceptions.AgentError`.
    """

    async def lease(self, request: LeaseRequest) -> Leased:
        """Grant a lease, first come, first served; the same ``request_id`` gets the same lease.

        A client whose call is cancelled, or gives up, withdraws the request.

        Raises:
            CapacityError: nothing became free within ``wait_s``, or the task never fits.
            NotFoundError: no such task.
            InfraError: the pool is shutting down, or the environment cannot be made.
        """
        ...

    async def renew(self, lease_id: str, request: RenewRequest) -> Renewed:
        """Keep a lease; waits for no operation.

        Raises:
            NotFoundError: no such lease, or it has expired.
        """
        ...

    async def reset(self, lease_id: str, request: ResetRequest) -> Observation:
        """Start the task from the beginning; errors as in `step`."""
        ...

    async def step(self, lease_id: str, request: StepRequest) -> StepResult:
        """Act once; a repeated request gets the stored answer.

        Raises:
            InvalidError: the ``seq`` is neither the next nor the last one, or the action is wrong.
            NotFoundError: no such lease; it may have been released while the operation ran.
            DeadlineError: the operation took longer than ``timeout_s``; if retryable, it still runs.
            InfraError, InternalError: the environment failed; the lease is good for `evaluate` only.
        """
        ...

    async def evaluate(self, lease_id: str, request: EvaluateRequest) -> Verdict:
        """Judge the episode once and end it; an environment that failed gets a verdict without a score.

        Raises:
            InvalidError: the task was never reset.
            NotFoundError: no such lease.
            DeadlineError: the evaluation still runs; a retry waits for it.
        """
        ...

    async def release(self, lease_id: str) -> Released:
        """Give a lease back and stop what runs; returns at once, and closes the environment afterwards.

        Also takes the ``request_id`` of a lease that is still waited for, and withdraws the request.
        """
        ...

    async def status(self) -> PoolStatus:
        """Return the load; waits for no lease."""
        ...
