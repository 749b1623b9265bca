"""What a dialect is: it reads a body into a `Question` and writes replies in its `Form`.

The canonical form of a request is a `ChatRequest` with chat messages and tools. Prompts, ids, sessions, lessons, the ledger
and limits know it alone. A dialect translates its own body into it and back, by pure functions: equal bodies give equal
questions, and a body that carries a reply back gives the message that the ledger has, so that its sampled ids are found.

`slim` and `unslim` carry a question between the runtime and the worker that reads large bodies.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol

import orjson

from openclaw.gateway.capture import Capture, Step
from openclaw.gateway.errors import ApiError
from openclaw.gateway.schema import ChatRequest, read_values, validated
from openclaw.ledger.records import KeptResponse

COMMENT = b": keep-alive\n\n"
"""What keeps a silent stream open without saying anything."""


@dataclass(frozen=True)
class Head:
    """What every answer to a request says: its id, the model's name, when it began (seconds), the weights."""

    id: str
    model: str
    created: float
    weight_version: str


class Writer(Protocol):
    """Writes the events of one streamed reply."""

    def step(self, step: Step) -> bytes:
        """Return the events of a choice's next step; the first one begins the stream."""
        ...

    def end(self, captures: Sequence[Capture]) -> bytes:
        """Return the events that end the stream of a whole reply."""
        ...


class Form(Protocol):
    """The form of the answers to one request: a dataclass whose fields are JSON."""

    def whole(self, head: Head, captures: Sequence[Capture]) -> dict[str, Any]:
        """Return a reply that is not streamed."""
        ...

    def writer(self, head: Head, captures: Sequence[Capture]) -> Writer:
        """Return the writer of a streamed reply's events; the captures are still growing."""
        ...

    def heartbeat(self) -> bytes:
        """Return what a silent stream gets, also before its first event."""
        ...

    def failure(self, error: ApiError) -> bytes:
        """Return the event that ends a stream which failed."""
        ...

    def early_writer(self, head: Head, captures: Sequence[Capture]) -> Writer | None:
        """Return the writer of a stream that waits for its first token, if it has something to say before; else None."""
        return None

    def alive(self, writer: Writer) -> bytes:
        """Return what a silent stream of ``writer`` gets."""
        return self.heartbeat()

    def failed(self, writer: Writer, error: ApiError) -> bytes:
        """Return the event that ends a stream of ``writer`` which failed."""
        return self.failure(error)

    def named(self, error: ApiError) -> ApiError:
        """Return an error about the canonical form as one about the client's own parameters."""
        return error

    def tells(self, error: ApiError) -> bool:
        """Return whether a stream that never began tells this error, instead of an HTTP status."""
        return False

    def continues(self) -> str | None:
        """Return the completion that the request names as the one before it."""
        return None

    def kept(self, head: Head, captures: Sequence[Capture]) -> KeptResponse | None:
        """Return what the client may ask for again."""
        return None


@dataclass(frozen=True)
class Question:
    """What a body asks.

    Attributes:
        request: its canonical form.
        raw: the canonical ``messages`` and ``tools`` as JSON, with known fields only.
        form: of the answer.
        prompts: the texts or ids of a text completion; it has no messages.
    """

    request: ChatRequest
    raw: Mapping[str, Any]
    form: Form
    prompts: Sequence[str] | Sequence[Sequence[int]] = ()


class Dialect(Protocol):
    """One API."""

    path: str
    form: type[Form]

    def read(self, body: bytes, context_length: int) -> Question:
        """Return what a body asks.

        Args:
            body: the request's JSON.
            context_length: tokens of the model's context, which bound the characters.

        Raises:
            ApiError: 400, naming the invalid parameter.
        """
        ...


def canonical_question(values: dict[str, Any], context_length: int, form: Form) -> Question:
    """Return the question that parameters of chat completions ask, answered in ``form``.

    Raises:
        ApiError: 400, in the names of the form.
    """
    try:
        request, raw = read_values(values, context_length)
    except ApiError as error:
        raise form.named(error) from error.__cause__
    return Question(request, raw, form)


def renamed(error: ApiError, names: Mapping[str, str]) -> ApiError:
    """Return an error about the canonical form as one about another API's parameters; ``names`` has theirs."""
    name = names.get(error.param or "")
    if name is not None:
        error.message = re.sub(
            rf"^{error.param}\b|(?<=your ){error.param}\b|(?<=the ){error.param}(?=\.$)|(?<=^'){error.param}(?=')",
            name,
            error.message,
        )
        error.message = error.message.replace(f"your {name} have ", f"your {name} has ")
        error.param = name
    elif error.param == "tools":
        error.message = error.message.replace(".function.", ".", 1)
    return error


def slim(question: Question) -> bytes:
    """Return a question as JSON, for `unslim`."""
    known = question.request.model_dump(by_alias=True, exclude_unset=True, exclude={"messages", "tools"})
    known |= {name: question.raw[name] for name in ("messages", "tools") if name in question.raw}
    form: Any = question.form
    return orjson.dumps({"request": known, "form": asdict(form), "prompts": question.prompts})


def unslim(dialect: Dialect, data: bytes) -> Question:
    """Return the question of ``dialect`` that `slim` wrote; `Dialect.read` has checked it."""
    parts = orjson.loads(data)
    request = validated(ChatRequest, parts["request"], lambda place: None)
    raw = {name: parts["request"][name] for name in ("messages", "tools") if name in parts["request"]}
    return Question(request, raw, dialect.form(**parts["form"]), parts["prompts"])


def event(value: Mapping[str, Any], name: str = "") -> bytes:
    """Return one server-sent event, with a name if it has one."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + orjson.dumps(value) + b"\n\n"
