"""``POST /v1/responses``: OpenAI's Responses API.

Guarantees: a parameter either has its OpenAI meaning, or cannot change a reply here, or the request is a 400 that names it;
parameters that nobody knows are left out, because agents send many. A limit on a reply's tokens is lowered to what the
context has room for. A reply that ends at a limit which the client set is ``incomplete``; one that ends at the server's or the
context's end is ``completed`` with ``incomplete_details``, because Codex, which sets no limit, drops all of an incomplete one.

A request may name a response that it continues, and items of earlier responses. Reading it does not look them up, so its
question is not `whole`; `completed` makes it so (`openclaw.gateway.response_desk`). Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from openclaw.config.bounds import LABELS, MESSAGE_ITEMS, MESSAGES, MODEL_CHARACTERS, TOP_LOGPROBS
from openclaw.gateway.capture import Capture, usage
from openclaw.gateway.dialects.dialect import (
    COMMENT,
    Dialect,
    Form,
    Head,
    Question,
    Writer,
    canonical_question,
    renamed,
)
from openclaw.gateway.dialects.response_events import ResponseWriter, reasons
from openclaw.gateway.dialects.response_items import (
    Item,
    ItemWriter,
    ToolName,
    entries_of,
    flat_name,
    known_items,
    read_items,
    read_tools,
)
from openclaw.gateway.errors import ApiError, Place, bad_request, unsupported
from openclaw.gateway.schema import AtMost, StrictModel, check_length, json_object, validated
from openclaw.ledger.records import KeptResponse
from openclaw.owners import COMPLETION, names_command_answer, new_completion_id, response_id, turn_of_response

ENCRYPTED = "reasoning.encrypted_content"
LOGPROBS = "message.output_text.logprobs"
ADVICE = {
    "background": "a response is answered at once; leave it out",
    "conversation": "send the whole 'input', or 'previous_response_id'",
    "messages": "POST /v1/chat/completions takes messages; here they are 'input'",
    "prompt": "there are no stored prompts; send 'instructions' and 'input'",
}
REFERENCE = "item_reference"
TOO_LONG = "context_length_exceeded"
LATER: dict[str, Any] = {"role": "user", "content": ""}
"""Ends the messages of a question that is not whole."""
CHAT_NAMES = {
    "chat_template_kwargs": "reasoning",
    "max_tokens": "max_output_tokens",
    "messages": "input",
    "response_format": "text",
}
"""What this API calls a parameter of chat completions."""


class TextFormat(StrictModel):
    """The required form of the text."""

    type: Literal["text", "json_object", "json_schema"]
    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class TextOptions(StrictModel):
    """What the text is like; ``verbosity`` has no meaning here."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class ReasoningOptions(StrictModel):
    """How the model thinks; every thought is told, whatever ``summary`` says."""

    effort: str | None = None
    summary: str | None = None


class StreamOptions(StrictModel):
    """Options of a stream."""

    include_obfuscation: bool | None = None


class ResponseRequest(StrictModel):
    """A request with every parameter that is read or answered."""

    model: Annotated[str, AtMost(MODEL_CHARACTERS)] | None = None
    input: str | list[Any] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=1e-6, le=1)
    top_logprobs: Annotated[int, Field(ge=0), AtMost(TOP_LOGPROBS)] | None = None
    include: list[str] | None = None
    text: TextOptions | None = None
    reasoning: ReasoningOptions | None = None
    truncation: Literal["auto", "disabled"] | None = None
    background: bool | None = None
    metadata: dict[str, str] | None = None
    prompt_cache_key: str | None = None
    safety_identifier: str | None = None
    user: str | None = None

    @property
    def items(self) -> list[Any]:
        """The items of the input; a text is a user's message."""
        if isinstance(self.input, str):
            content = [{"type": "input_text", "text": self.input}]
            return [{"type": "message", "role": "user", "content": content}]
        return self.input or []


@dataclass(frozen=True)
class ResponsesForm(Form):
    """The answers of the Responses API.

    Attributes:
        echo: the parameters that a response repeats.
        names: how the client knows each function: name, namespace, whether it is a custom tool.
        encrypted: whether a thought carries the handle of its turn.
        logprobs: whether the client asked for log-probabilities.
        limited: whether it set a limit on the reply's tokens.
        items: of the request, without those before it; none if nobody needs them again.
        previous: the response that it continues.
        stores: whether the response can be found again.
    """

    echo: dict[str, Any] = field(default_factory=dict[str, Any])
    names: dict[str, Any] = field(default_factory=dict[str, Any])
    encrypted: bool = False
    logprobs: bool = False
    limited: bool = False
    items: list[Any] = field(default_factory=list[Any])
    previous: str | None = None
    stores: bool = True

    def begun(self, head: Head, captures: Sequence[Capture]) -> dict[str, Any]:
        """Return a response that is in progress."""
        plan = captures[0].prompt.plan
        return {
            "id": response_id(head.id),
            "object": "response",
            "created_at": int(head.created),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "model": head.model,
            "output": [],
            "usage": None,
            **self.echo,
            "previous_response_id": self.previous,
            "store": self.stores and captures[0].stored,
            "temperature": plan.temperature,
            "top_p": plan.top_p,
        }

    def ended(self, begun: Mapping[str, Any], captures: Sequence[Capture], items: Sequence[Item]) -> dict[str, Any]:
        """Return a response that is over."""
        cut = reasons(captures)
        status = "incomplete" if cut is not None and self.limited else "completed"
        counts = usage(captures)
        return {
            **begun,
            "status": status,
            "store": self.stores and captures[0].stored,
            "incomplete_details": cut,
            "output": list(items),
            "usage": {
                "input_tokens": counts["prompt_tokens"],
                "input_tokens_details": counts["prompt_tokens_details"],
                "output_tokens": counts["completion_tokens"],
                "output_tokens_details": counts["completion_tokens_details"],
                "total_tokens": counts["total_tokens"],
            },
        }

    def whole(self, head: Head, captures: Sequence[Capture]) -> dict[str, Any]:
        """Return a reply that is not streamed."""
        [capture] = captures
        message = capture.builder.message()

        def logprobs(text: str) -> list[Any]:
            return entries_of(text, capture.content_logprobs, message.get("reasoning_content") or "")

        items = self._items(head).of_message(message, complete=reasons(captures) is None, logprobs=logprobs)
        return self.ended(self.begun(head, captures), captures, items)

    def writer(self, head: Head, captures: Sequence[Capture]) -> ResponsesWriter:
        """Return the writer of a stream's events."""
        return ResponsesWriter(self, self.begun(head, captures), self._items(head))

    def continues(self) -> str | None:
        """Return the turn of the response that the request continues."""
        if self.previous is None or names_command_answer(self.previous):
            return None
        return turn_of_response(self.previous)

    def kept(self, head: Head, captures: Sequence[Capture]) -> KeptResponse | None:
        """Return what the client may ask for again."""
        if not self.stores:
            return None
        return KeptResponse(self.items, self.whole(head, captures), self.continues())

    def heartbeat(self) -> bytes:
        """Return a comment: until the first event there is no response to tell of."""
        return COMMENT

    def failure(self, error: ApiError) -> bytes:
        """Return the event of a response that never began."""
        begun = {"id": response_id(new_completion_id()), "object": "response", "status": "in_progress", "output": []}
        return ResponsesWriter(self, begun, ItemWriter("", {}, None)).failure(error)

    def early_writer(self, head: Head, captures: Sequence[Capture]) -> Writer:
        """Return the writer of a stream: that a response is in progress is an event, which keeps Codex waiting."""
        return self.writer(head, captures)

    def alive(self, writer: Writer) -> bytes:
        """Return an event that says that the response is in progress."""
        assert isinstance(writer, ResponseWriter)
        return writer.alive()

    def failed(self, writer: Writer, error: ApiError) -> bytes:
        """Return the event of a response that failed."""
        assert isinstance(writer, ResponseWriter)
        return writer.failure(error)

    def named(self, error: ApiError) -> ApiError:
        """Return an error about the canonical form as one about this API's parameters."""
        return renamed(error, CHAT_NAMES)

    def tells(self, error: ApiError) -> bool:
        """Return whether the conversation is too long: Codex shortens it when a stream says so, and ends at a status."""
        return error.code == TOO_LONG

    def _items(self, head: Head) -> ItemWriter:
        names = {function: ToolName(*name) for function, name in self.names.items()}
        return ItemWriter(head.id.removeprefix(COMPLETION), names, head.id if self.encrypted else None)


class ResponsesWriter(ResponseWriter):
    """Writes the events of one streamed response, and its end."""

    def __init__(self, form: ResponsesForm, begun: Mapping[str, Any], items: ItemWriter) -> None:
        """Start a stream of ``form``."""
        super().__init__(begun, items, logprobs=form.logprobs)
        self._form = form
        self._begun = begun

    def end(self, captures: Sequence[Capture]) -> bytes:
        """Return the events that end the stream of a whole reply."""
        data, items = self.finished(complete=reasons(captures) is None)
        response = self._form.ended(self._begun, captures, items)
        return data + self.end_with(f"response.{response['status']}", response)


def read_request(body: bytes) -> ResponseRequest:
    """Return the validated request.

    Raises:
        ApiError: 400, naming the invalid parameter.
    """
    raw = json_object(body, "input")
    values = {name: value for name, value in raw.items() if value is not None}
    for name in ADVICE:
        if values.get(name):
            raise unsupported(name, ADVICE[name])
    if values.get("truncation") == "auto":
        raise unsupported("truncation", "a history is never cut here; send 'disabled'")
    request = validated(ResponseRequest, values, _advice_on)
    if not request.items and request.previous_response_id is None:
        raise bad_request("input: send a text, or a list of items", param="input")
    return request


def _advice_on(place: Place) -> str | None:
    """Return what to send where pydantic's words would name its types, or None."""
    if place[0] == "input":
        return "send a text, or a list of items"
    return None


def referred(item: object) -> str | None:
    """Return the id of the item that an item refers to, or None."""
    if not isinstance(item, dict) or item.get("type", REFERENCE) != REFERENCE or "role" in item:
        return None
    return item["id"] if isinstance(item.get("id"), str) else None


def _check_items(items: Sequence[Any]) -> None:
    """Refuse more items or references than a conversation may have, and two references to one item.

    Many references to a long item would be gigabytes of text.
    """
    check_length(len(items), MESSAGE_ITEMS, "input")
    names = [name for item in items if (name := referred(item)) is not None]
    check_length(len(names), MESSAGES, "input")
    if len(set(names)) < len(names):
        raise bad_request("input: it names an item twice; name it once", param="input")


def as_question(request: ResponseRequest, context_length: int) -> Question:
    """Return a request in the canonical form, without what it only names.

    Args:
        request: the request.
        context_length: tokens of the model's context, which bound the characters.

    Raises:
        ApiError: 400, naming the invalid parameter.
    """
    with _telling(request.stream):
        _check_items(request.items)
    functions, names, kept = read_tools(request.tools or ())
    choice, functions = _choice(request.tool_choice, functions)
    own = [item for item in request.items if referred(item) is None]
    names_others = request.previous_response_id is not None or len(own) < len(request.items)
    messages = read_items(own, request.instructions)
    if names_others:
        messages.append(LATER)
    values: dict[str, Any] = {
        "model": request.model,
        "messages": messages,
        "tools": functions or None,
        "tool_choice": choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "max_tokens": request.max_output_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "stream": request.stream,
        "response_format": _response_format(request.text),
        "reasoning_effort": request.reasoning.effort if request.reasoning else None,
    }
    included = set(request.include or ())
    if LOGPROBS in included or request.top_logprobs:
        values |= {"logprobs": True, "top_logprobs": request.top_logprobs}
    stores = request.store is not False
    form = ResponsesForm(
        echo=_echo(request, kept),
        names={function: list(name) for function, name in names.items()},
        encrypted=ENCRYPTED in included,
        logprobs=bool(values.get("logprobs")),
        limited=request.max_output_tokens is not None,
        items=known_items(request.items) if stores or names_others else [],
        previous=request.previous_response_id,
        stores=stores,
    )
    values = {name: value for name, value in values.items() if value is not None}
    return _question(values, context_length, form)


def _question(values: dict[str, Any], context_length: int, form: ResponsesForm) -> Question:
    """Return the canonical question."""
    with _telling(values.get("stream")):
        return canonical_question(values, context_length, form)


@contextmanager
def _telling(stream: bool | None) -> Iterator[None]:
    """Mark an error that a stream tells, if the client asked for a ``stream``."""
    try:
        yield
    except ApiError as error:
        error.streamed = bool(stream) and error.code == TOO_LONG
        raise


def is_whole(question: Question) -> bool:
    """Return whether a question has all of its conversation."""
    form = question.form
    assert isinstance(form, ResponsesForm)
    return form.previous is None and all(referred(item) is None for item in form.items)


def completed(question: Question, items: Sequence[Any], context_length: int) -> Question:
    """Return a question with all of its conversation.

    Args:
        question: that is not `is_whole`.
        items: those before the request's own and these, without references.
        context_length: tokens of the model's context, which bound the characters.

    Raises:
        ApiError: 400, if the conversation cannot be read, or is too long.
    """
    form = question.form
    assert isinstance(form, ResponsesForm)
    values = question.request.model_dump(by_alias=True, exclude_unset=True, exclude={"messages"})
    values["messages"] = read_items(items, form.echo["instructions"])
    if "tools" in question.raw:
        values["tools"] = question.raw["tools"]
    return _question(values, context_length, form)


def _echo(request: ResponseRequest, tools: Sequence[Any]) -> dict[str, Any]:
    """Return the parameters that a response repeats; a hosted tool is not among its tools.

    Raises:
        ApiError: 400 for more than it may repeat, because each event of a stream may have them.
    """
    text, reasoning = request.text or TextOptions(), request.reasoning or ReasoningOptions()
    form = text.format.model_dump(by_alias=True, exclude_none=True) if text.format else {"type": "text"}
    labels = {
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": None,
        "metadata": request.metadata or {},
        "parallel_tool_calls": request.parallel_tool_calls is not False,
        "prompt_cache_key": request.prompt_cache_key,
        "reasoning": {"effort": reasoning.effort, "summary": reasoning.summary},
        "safety_identifier": request.safety_identifier,
        "service_tier": "default",
        "text": {"format": form} | ({"verbosity": text.verbosity} if text.verbosity else {}),
        "tool_choice": request.tool_choice or "auto",
        "top_logprobs": request.top_logprobs or 0,
        "truncation": "disabled",
        "user": request.user,
    }
    if len(orjson.dumps(labels)) > LABELS.most:
        longest = max(labels, key=lambda name: len(orjson.dumps(labels[name])))
        raise bad_request(
            f"{longest}: a response repeats it; send at most {LABELS.most} characters of JSON",
            param=longest,
            bound=LABELS,
        )
    return {"instructions": request.instructions, "tools": list(tools), **labels}


def _response_format(text: TextOptions | None) -> dict[str, Any] | None:
    form = text.format if text else None
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return {"type": "json_object"}
    if form.name is None or form.schema_ is None:
        raise bad_request("text.format: send {'type': 'json_schema', 'name': ..., 'schema': {...}}", param="text")
    schema = {"name": form.name, "schema": form.schema_, "strict": form.strict}
    return {"type": "json_schema", "json_schema": schema}


def _choice(
    choice: str | Mapping[str, Any] | None, functions: list[dict[str, Any]]
) -> tuple[Any, list[dict[str, Any]]]:
    """Return a tool choice as chat completions have it, and the functions that it leaves.

    Raises:
        ApiError: 400 for a choice among hosted tools.
    """
    if choice is None or isinstance(choice, str):
        return choice, functions
    if choice.get("type") in ("function", "custom"):
        return {"type": "function", "function": {"name": _chosen(choice)}}, functions
    if choice.get("type") == "allowed_tools" and isinstance(allowed := choice.get("tools"), list):
        left = {_chosen(tool) for tool in allowed if isinstance(tool, dict)}
        return choice.get("mode", "auto"), [tool for tool in functions if tool["function"]["name"] in left]
    raise bad_request(
        "tool_choice: send auto, none, required, {'type': 'function', 'name': ...} (or custom), or "
        "{'type': 'allowed_tools', 'mode': ..., 'tools': [...]}; there are no hosted tools",
        param="tool_choice",
    )


def _chosen(choice: Mapping[str, Any]) -> str:
    name, namespace = choice.get("name"), choice.get("namespace")
    if not isinstance(name, str):
        raise bad_request("tool_choice: send the 'name' of a tool", param="tool_choice")
    return flat_name(name, namespace if isinstance(namespace, str) else None)


class Responses(Dialect):
    """The Responses API."""

    path = "/v1/responses"
    form = ResponsesForm

    def read(self, body: bytes, context_length: int) -> Question:
        """Return what a body asks, without what it only names."""
        return as_question(read_request(body), context_length)


RESPONSES = Responses()
