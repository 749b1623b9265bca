"""``POST /v1/messages``: Anthropic's Messages API, for Claude Code, opencode, Hermes and the Anthropic libraries.

What a body says becomes chat messages and tools, by pure functions, so a conversation that comes back gives the messages that
the ledger has:

* System texts come together in one leading system message, from ``system`` and from messages of the role ``system``, in
  their order, because a chat template may take a system message at the beginning only. A line at the start that begins
  with `BILLING` is left out: it changes with each conversation and tells the model nothing.
* Text blocks of a reply are joined as they stand; those of a user stay parts of one message. Tool results become tool messages
  before the rest of their message. An error's result begins with `ERROR`.
* A thought comes back as ``reasoning_content``. Its signature is the id of the turn in base64, so the message is linked to
  the turn whatever a client does to its words.
* Tools that a server would run are left out, as are their blocks in replies, and tools with ``defer_loading`` until a
  ``tool_reference`` names them.

Unknown fields are ignored, because clients send those of new betas. Blocks that cannot be read, and an answer's schema that
the engine cannot enforce, are a 400.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

import orjson
from pydantic import Field

from chat_codec.reply_parser import Content, Delta, Reasoning, ToolCallArguments, ToolCallStart
from groundwork.chat_messages import Message, read_arguments
from openclaw.config.bounds import MODEL_CHARACTERS
from openclaw.gateway.capture import Capture, Step, token_counts
from openclaw.gateway.dialects.dialect import (
    Dialect,
    Form,
    Head,
    Question,
    Writer,
    canonical_question,
    event,
    renamed,
)
from openclaw.gateway.errors import MESSAGES_PATH, ApiError, Place, bad_request
from openclaw.gateway.schema import (
    UNSEEN_PICTURE,
    AtMost,
    StrictModel,
    encoded_file,
    is_encoded_file,
    json_object,
    validated,
)
from openclaw.owners import TURN_ID

BILLING = "x-anthropic-billing-header:"
DOCUMENT, FOUND = "[document]\n", "[search result]"
"""What a text begins with that its user did not type, so that it is never taken for the user's own words."""
ERROR = "Error: "
BETWEEN_SYSTEM_TEXTS = "\n\n"
SCHEMA_NAME = "answer"
PREFILL = (
    "messages: this model does not support assistant message prefill; the conversation must end with a user message"
)
CHAT_NAMES = {
    "chat_template_kwargs": "thinking",
    "parallel_tool_calls": "tool_choice",
    "response_format": "output_config.format",
    "stop": "stop_sequences",
}
"""What this API calls a parameter of chat completions."""
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class TextBlock(StrictModel):
    """A text."""

    type: Literal["text"]
    text: str


class Base64Source(StrictModel):
    """A file in the request."""

    type: Literal["base64"]
    media_type: str
    data: str


class UrlSource(StrictModel):
    """A file elsewhere."""

    type: Literal["url"]
    url: str


class TextSource(StrictModel):
    """A document of plain text."""

    type: Literal["text"]
    data: str


class ContentSource(StrictModel):
    """A document of blocks."""

    type: Literal["content"]
    content: str | list[TextBlock]


class ImageBlock(StrictModel):
    """A picture."""

    type: Literal["image"]
    source: Annotated[Base64Source | UrlSource, Field(discriminator="type")]


class DocumentBlock(StrictModel):
    """A document; the model reads those of text only."""

    type: Literal["document"]
    source: Annotated[Base64Source | UrlSource | TextSource | ContentSource, Field(discriminator="type")]


class ToolReference(StrictModel):
    """A tool that a search for tools found."""

    type: Literal["tool_reference"]
    tool_name: str


class SearchResult(StrictModel):
    """A source that a tool found."""

    type: Literal["search_result"]
    title: str
    source: str
    content: list[TextBlock]


ResultBlock = Annotated[
    TextBlock | ImageBlock | DocumentBlock | ToolReference | SearchResult, Field(discriminator="type")
]


class ToolResult(StrictModel):
    """What a tool gave."""

    type: Literal["tool_result"]
    tool_use_id: str
    content: str | list[ResultBlock] | None = None
    is_error: bool | None = None


class ToolUse(StrictModel):
    """A call of a tool."""

    type: Literal["tool_use"]
    id: str
    name: str = Field(min_length=1)
    input: dict[str, Any]


class Thinking(StrictModel):
    """A thought."""

    type: Literal["thinking"]
    thinking: str
    signature: str | None = None


class RedactedThinking(StrictModel):
    """A thought that only its server can read."""

    type: Literal["redacted_thinking"]
    data: str


class ServerBlock(StrictModel):
    """What a server did by itself; left out."""

    type: Literal[
        "server_tool_use",
        "web_search_tool_result",
        "web_fetch_tool_result",
        "code_execution_tool_result",
        "bash_code_execution_tool_result",
        "text_editor_code_execution_tool_result",
        "tool_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
    ]


Block = Annotated[
    TextBlock
    | ImageBlock
    | DocumentBlock
    | ToolReference
    | SearchResult
    | ToolResult
    | ToolUse
    | Thinking
    | RedactedThinking
    | ServerBlock,
    Field(discriminator="type"),
]


class SentMessage(StrictModel):
    """A message of the history."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]

    @property
    def blocks(self) -> list[Any]:
        """The content as blocks."""
        return [TextBlock(type="text", text=self.content)] if isinstance(self.content, str) else self.content


class SentTool(StrictModel):
    """A tool; one with a ``type`` other than ``custom`` is run by a server."""

    name: str = ""
    type: str | None = None
    description: str | None = None
    input_schema: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class ToolChoice(StrictModel):
    """Whether the reply must be a call."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class ThinkingSwitch(StrictModel):
    """Whether the model thinks; how long is its own choice."""

    type: Literal["enabled", "adaptive", "disabled"]


class OutputFormat(StrictModel):
    """The form of the answer."""

    type: Literal["json_schema"]
    schema_: dict[str, Any] = Field(alias="schema")


class OutputConfig(StrictModel):
    """How to answer."""

    format: OutputFormat | None = None


class CountRequest(StrictModel):
    """A conversation with every parameter that has a meaning here."""

    messages: list[SentMessage] = Field(min_length=1)
    model: Annotated[str, AtMost(MODEL_CHARACTERS)] | None = None
    system: str | list[TextBlock] | None = None
    tools: list[SentTool] | None = None
    tool_choice: ToolChoice | None = None
    thinking: ThinkingSwitch | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None


class MessagesRequest(CountRequest):
    """A request for a message."""

    max_tokens: int = Field(ge=1)
    stream: bool | None = None
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=0, le=1)
    top_k: int | None = Field(None, ge=0)
    stop_sequences: list[str] | None = None


def canonical(request: CountRequest) -> dict[str, Any]:
    """Return the parameters of the chat completion that means the same.

    Raises:
        ApiError: 400 for a block where it cannot be, or one that cannot be read.
    """
    tools, messages = chat_tools(request), chat_messages(request)
    wanted = request.output_format or (request.output_config.format if request.output_config else None)
    values: dict[str, Any] = {"model": request.model, "messages": messages, "tools": tools or None}
    if tools and (choice := request.tool_choice) is not None:
        named = {"type": "function", "function": {"name": choice.name or ""}}
        values["tool_choice"] = {"any": "required", "tool": named}.get(choice.type, choice.type)
        values["parallel_tool_calls"] = False if choice.disable_parallel_tool_use else None
    if wanted is not None:
        described = {"name": SCHEMA_NAME, "schema": wanted.schema_}
        values["response_format"] = {"type": "json_schema", "json_schema": described}
    if request.thinking is not None and request.thinking.type != "adaptive":
        values["chat_template_kwargs"] = {"enable_thinking": request.thinking.type == "enabled"}
    if isinstance(request, MessagesRequest):
        sampling = ("max_tokens", "stream", "temperature", "top_p", "top_k")
        values |= {name: getattr(request, name) for name in sampling}
        values["top_p"] = request.top_p or None  # 0 has no nucleus; the server's own takes its place
        values["stop"] = request.stop_sequences or None
    return {name: value for name, value in values.items() if value is not None}


def chat_tools(request: CountRequest) -> list[dict[str, Any]]:
    """Return the tools that the model can call, in the form of chat completions."""
    found = set(_found_tools(request))
    tools: list[dict[str, Any]] = []
    for tool in request.tools or ():
        if tool.type not in (None, "custom") or (tool.defer_loading and tool.name not in found):
            continue
        function: dict[str, Any] = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        if tool.strict:
            function["strict"] = True
        known = {name: value for name, value in function.items() if value is not None}
        tools.append({"type": "function", "function": known})
    return tools


def _found_tools(request: CountRequest) -> Iterator[str]:
    for message in request.messages:
        for block in message.blocks:
            inner = block.content if isinstance(block, ToolResult) else None
            for part in (block, *(inner if isinstance(inner, list) else ())):
                if isinstance(part, ToolReference):
                    yield part.tool_name


def chat_messages(request: CountRequest) -> list[Message]:
    """Return the conversation in the form of chat completions, with one leading system message if there is any.

    Raises:
        ApiError: 400 for a block where it cannot be, one that cannot be read, or a reply at the end.
    """
    system = [request.system] if isinstance(request.system, str) else [block.text for block in request.system or ()]
    messages: list[Message] = []
    for position, message in enumerate(request.messages):
        where = f"messages.{position}.content"
        if message.role == "system":
            system += [_text(block, where) for block in message.blocks]
        elif message.role == "assistant":
            messages.append(_reply(message, where))
        else:
            messages += _asked(message, where)
    if messages and messages[-1]["role"] == "assistant":
        raise bad_request(PREFILL, param="messages")
    said = [text for text in map(_unbilled, system) if text]
    leading = [{"role": "system", "content": BETWEEN_SYSTEM_TEXTS.join(said)}] if said else []
    return [*leading, *messages]


def _unbilled(text: str) -> str:
    """Return a system text without a first line that begins with `BILLING`."""
    return text.partition("\n")[2] if text.startswith(BILLING) else text


def _text(block: object, where: str) -> str:
    if not isinstance(block, TextBlock):
        raise bad_request(f"{where}: a system message has texts only", param="messages")
    return block.text


def _reply(message: SentMessage, where: str) -> Message:
    """Return an assistant message."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    turn = ""
    for number, block in enumerate(message.blocks):
        match block:
            case TextBlock():
                texts.append(block.text)
            case Thinking():
                thoughts.append(block.thinking)
                turn = turn_of(block.signature or "") or turn
            case RedactedThinking():
                turn = turn_of(block.data) or turn
            case ToolUse():
                function = {"name": block.name, "arguments": orjson.dumps(block.input).decode()}
                calls.append({"id": block.id, "type": "function", "function": function})
            case ServerBlock():
                continue
            case _:
                raise bad_request(f"{where}.{number}: a reply has no block {block.type!r}", param="messages")
    result: Message = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if any(thoughts):
        result["reasoning_content"] = "".join(thoughts)
    if calls:
        result["tool_calls"] = calls
    return {**result, "id": turn} if turn else result


def _asked(message: SentMessage, where: str) -> list[Message]:
    """Return the tool messages of a user message, then the rest of it."""
    results: list[Message] = []
    parts: list[dict[str, Any]] = []
    for number, block in enumerate(message.blocks):
        place = f"{where}.{number}"
        match block:
            case ToolResult():
                results.append(_result(block, place))
            case ServerBlock():
                continue
            case ToolUse() | Thinking() | RedactedThinking():
                raise bad_request(f"{place}: a user message has no block {block.type!r}", param="messages")
            case _:
                parts.append(_part(block, place))
    if isinstance(message.content, str):
        return [{"role": "user", "content": message.content}]
    return [*results, {"role": "user", "content": parts}] if parts or not results else results


def _result(block: ToolResult, where: str) -> Message:
    """Return the message of a tool's result."""
    content: str | list[dict[str, Any]]
    if isinstance(block.content, list):
        content = [_part(part, f"{where}.content.{number}", read=True) for number, part in enumerate(block.content)]
        content = [{"type": "text", "text": ERROR}, *content] if block.is_error else content
    else:
        content = (ERROR if block.is_error else "") + (block.content or "")
    return {"role": "tool", "tool_call_id": block.tool_use_id, "content": content}


def _part(block: Any, where: str, *, read: bool = False) -> dict[str, Any]:
    """Return the content part of a block; ``read``: of one that a tool read.

    Raises:
        ApiError: 400 for a document that is no text, or a picture that cannot be used, unless a tool read it: then the model
            learns that it cannot see it.
    """
    match block:
        case TextBlock():
            text = block.text
        case ImageBlock(source=file):
            url = file.url if isinstance(file, UrlSource) else f"data:{file.media_type};base64,{file.data}"
            if not read or is_encoded_file(url):
                encoded_file(url, where)
                return {"type": "image_url", "image_url": {"url": url}}
            text = UNSEEN_PICTURE
        case DocumentBlock(source=TextSource() as file):
            text = DOCUMENT + file.data
        case DocumentBlock(source=ContentSource() as file):
            inner = file.content
            text = DOCUMENT + (inner if isinstance(inner, str) else "".join(each.text for each in inner))
        case DocumentBlock() if read:
            text = "[a document that this model cannot read]"
        case DocumentBlock():
            raise bad_request(f"{where}: the model reads documents of plain text only; send its text", param="messages")
        case ToolReference():
            text = f"[the tool {block.tool_name} is available now]"
        case SearchResult():
            text = "\n".join([FOUND, block.title, block.source, *(each.text for each in block.content)])
        case _:
            raise AssertionError(f"no user message has a {type(block).__name__}")
    return {"type": "text", "text": text}


def signature_of(turn: str) -> str:
    """Return the signature of a turn's thought: a handle of the turn, without anything of its text."""
    return base64.b64encode(turn.encode()).decode()


def turn_of(signature: str) -> str:
    """Return the turn that a signature of ours names; empty for any other."""
    try:
        turn = base64.b64decode(signature, validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        return ""
    return turn if TURN_ID.fullmatch(turn) else ""


@dataclass(frozen=True)
class MessagesForm(Form):
    """The answers of the Messages API."""

    def whole(self, head: Head, captures: Sequence[Capture]) -> dict[str, Any]:
        """Return a reply that is not streamed."""
        (capture,) = captures
        message = capture.builder.message()
        blocks: list[dict[str, Any]] = []
        if thought := message.get("reasoning_content"):
            blocks.append({"type": "thinking", "thinking": thought, "signature": signature_of(capture.id)})
        if text := message.get("content"):
            blocks.append({"type": "text", "text": text})
        for call in message.get("tool_calls", ()):
            function = call["function"]
            given = _input(function["arguments"])
            blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": given})
        return {**opening(head, capture), "content": blocks, **ending(capture), "usage": usage_of(captures)}

    def writer(self, head: Head, captures: Sequence[Capture]) -> Writer:
        """Return the writer of a stream's events."""
        return MessagesWriter(head, captures[0])

    def heartbeat(self) -> bytes:
        """Return a ping."""
        return PING

    def failure(self, error: ApiError) -> bytes:
        """Return the event with an error."""
        return event(error.messages_body(), "error")

    def named(self, error: ApiError) -> ApiError:
        """Return an error about the canonical form as one about this API's parameters."""
        return renamed(error, CHAT_NAMES)


PING = event({"type": "ping"}, "ping")


def _input(arguments: str) -> dict[str, Any]:
    """Return a call's arguments as an object; what the model wrote is shown as it is if it wrote none."""
    value = read_arguments(arguments) if arguments.strip() else {}
    return value if isinstance(value, dict) else {"arguments": arguments}


def opening(head: Head, capture: Capture) -> dict[str, Any]:
    """Return what a message says before its content."""
    return {"id": capture.id, "type": "message", "role": "assistant", "model": head.model}


def ending(capture: Capture) -> dict[str, Any]:
    """Return why a message ended."""
    stop = capture.parser.stop_string
    reason = STOP_REASONS[capture.finish_reason or "stop"]
    if stop is not None and reason == "end_turn":
        return {"stop_reason": "stop_sequence", "stop_sequence": stop}
    return {"stop_reason": reason, "stop_sequence": None}


def usage_of(captures: Sequence[Capture]) -> dict[str, Any]:
    """Return the tokens so far; those that the engine had in its cache are counted apart, as this API does."""
    prompt, generated = token_counts(captures)
    cached = captures[0].cached_tokens
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
    }


@dataclass
class MessagesWriter(Writer):
    """Writes the events of one streamed message: one block after the other, each opened and closed."""

    head: Head
    capture: Capture
    _count: int = 0
    _open: type[Delta] | None = None
    _started: bool = field(default=False)

    def step(self, step: Step) -> bytes:
        """Return the events of the next step; the first one begins the message."""
        data = b"" if self._started else self._start()
        for delta in step.deltas:
            data += self._delta(delta)
        return data

    def end(self, captures: Sequence[Capture]) -> bytes:
        """Return the events that end the message."""
        data = self._close()
        usage = usage_of(captures)
        data += event({"type": "message_delta", "delta": ending(self.capture), "usage": usage}, "message_delta")
        return data + event({"type": "message_stop"}, "message_stop")

    def _start(self) -> bytes:
        self._started = True
        message = {**opening(self.head, self.capture), "content": [], "stop_reason": None, "stop_sequence": None}
        message["usage"] = usage_of([self.capture])
        return event({"type": "message_start", "message": message}, "message_start")

    def _delta(self, delta: Delta) -> bytes:
        match delta:
            case Content(text):
                return self._within(Content, {"type": "text", "text": ""}) + self._piece("text_delta", "text", text)
            case Reasoning(text):
                block = {"type": "thinking", "thinking": "", "signature": ""}
                return self._within(Reasoning, block) + self._piece("thinking_delta", "thinking", text)
            case ToolCallStart(_, id_, name):
                return self._close() + self._begin(
                    ToolCallStart, {"type": "tool_use", "id": id_, "name": name, "input": {}}
                )
            case ToolCallArguments(_, text):
                return self._piece("input_json_delta", "partial_json", text)

    def _within(self, kind: type[Delta], block: Mapping[str, Any]) -> bytes:
        """Return the events after which a block of ``kind`` is open."""
        return b"" if self._open is kind else self._close() + self._begin(kind, block)

    def _begin(self, kind: type[Delta], block: Mapping[str, Any]) -> bytes:
        self._open = kind
        return event(
            {"type": "content_block_start", "index": self._count, "content_block": block}, "content_block_start"
        )

    def _piece(self, kind: str, name: str, text: str) -> bytes:
        return (
            b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,"delta":{"type":"%b","%b":%b}}\n\n'
            % (
                self._count,
                kind.encode(),
                name.encode(),
                orjson.dumps(text),
            )
        )

    def _close(self) -> bytes:
        """Return the events that close the open block, if there is one; a thought gets its signature."""
        if self._open is None:
            return b""
        data = b""
        if self._open is Reasoning:
            data = self._piece("signature_delta", "signature", signature_of(self.capture.id))
        data += event({"type": "content_block_stop", "index": self._count}, "content_block_stop")
        self._open = None
        self._count += 1
        return data


class Messages(Dialect):
    """The Messages API."""

    path = MESSAGES_PATH
    form = MessagesForm

    def read(self, body: bytes, context_length: int) -> Question:
        """Return what a body asks."""
        return _question(body, MessagesRequest, context_length)


class CountTokens(Dialect):
    """The same conversation, of which a client wants to know the length only."""

    path = f"{MESSAGES_PATH}/count_tokens"
    form = MessagesForm

    def read(self, body: bytes, context_length: int) -> Question:
        """Return what a body asks."""
        return _question(body, CountRequest, context_length)


def _question(body: bytes, model: type[CountRequest], context_length: int) -> Question:
    values = {name: value for name, value in json_object(body, "messages").items() if value is not None}
    return canonical_question(canonical(validated(model, values, _advice_on)), context_length, MessagesForm())


def _advice_on(place: Place) -> str | None:
    """Return what to send where pydantic's words would name its types, or None."""
    if place[0] == "messages" and "content" in place:
        return (
            "content is a text or a list of blocks: text, image, document, tool_result and search_result of a user; text, "
            "thinking, redacted_thinking and tool_use of a reply, each with all its fields"
        )
    return None


MESSAGES, COUNT_TOKENS = Messages(), CountTokens()
