"""The chat completion request: supported, ignored and refused parameters, and what is kept of its messages and tools.

Guarantees: a parameter either has its OpenAI meaning, or is in `IGNORED` because it cannot change a reply here, or the
request is a 400 that names it. Null counts as not sent. For bad input `parse_request` raises only `ApiError`. Every
accepted number is within what the engine's tensors take; `openclaw.gateway.sampling` has the bounds that depend on the
model.

What is rendered, stored, matched and judged has only the known fields, in the client's order and with its values; whatever
else a client sends in a message, a content part, a tool call or a tool is dropped here. So a stored turn is bounded by
`PROMPT_CHARACTERS` and the reply. A field is known because a chat template or the ledger reads it. Add the fields that a
new template reads. Pure functions.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Annotated, Any, Literal, TypeVar, cast

import orjson
from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from groundwork.chat_messages import (
    CALL_FIELDS,
    CALLED_FIELDS,
    FUNCTION_FIELDS,
    MESSAGE_FIELDS,
    TOOL_FIELDS,
    nesting,
)
from openclaw.config.bounds import (
    BIASED_TOKENS,
    CHOICES,
    JSON_DEPTH,
    MESSAGE_ITEMS,
    MESSAGES,
    MODEL_CHARACTERS,
    NAME_CHARACTERS,
    PICTURE_BYTES,
    PICTURES,
    PROMPT_CHARACTERS,
    SESSION_ID,
    STOP_CHARACTERS,
    STOP_STRINGS,
    STOP_TOKENS,
    TEMPLATE_DEPTH,
    TEMPLATE_KEYWORDS,
    TOOLS,
    TOP_LOGPROBS,
    Bound,
)
from openclaw.gateway.errors import (
    SHOWN_CHARACTERS,
    ApiError,
    Place,
    bad_request,
    from_validation,
    too_long,
    unsupported,
)
from openclaw.gateway.grammar_limits import check_enforced, check_grammar_size

IGNORED = frozenset(
    {
        "metadata",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Harmless: labels, and hints on caching and speed."""

ADVICE = {
    "functions": "use 'tools'",
    "function_call": "use 'tool_choice'",
    "modalities": "only ['text'] is",
    "audio": "only text is",
    "web_search_options": "there is no search",
}
TOKEN_ID = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True)
class AtMost:
    """Bounds a field of a body, as an annotation: ``Annotated[str, AtMost(SESSION_ID)]``.

    It bounds the length of a text or a list, or the value of a number. Pydantic's core checks it and makes the error, whose
    context has the bound's name for `from_validation`.
    """

    bound: Bound

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Check the bound between the field's type and its other rules, all in pydantic's core."""
        inner: Any = handler(source)
        kind = inner["type"]
        bounded = core_schema.custom_error_schema(
            cast(CoreSchema, {"type": kind, **self._keyword(kind)}),
            "bound",
            custom_error_message="send at most {most} {unit}",
            custom_error_context={"most": self.bound.most, "unit": self.bound.unit, "limit": self.bound.name},
        )
        if kind in ("int", "float"):  # infinity is no number here, rather than one beyond the bound
            return core_schema.chain_schema([inner, bounded])
        return core_schema.chain_schema([cast(CoreSchema, {"type": kind}), bounded, inner])

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Show the field's rules and the bound in the OpenAPI description."""
        steps = cast(core_schema.ChainSchema, schema)["steps"]
        inner: Any = next(step for step in reversed(steps) if step["type"] != "custom-error")
        return handler(cast(CoreSchema, {**inner, **self._keyword(inner["type"])}))

    def _keyword(self, kind: str) -> dict[str, int]:
        return {"max_length" if kind in ("str", "list") else "le": self.bound.most}


class StrictModel(BaseModel):
    """A part of a body: its types are exact, and what it does not name is ignored."""

    model_config = ConfigDict(extra="ignore", strict=True)


class Function(StrictModel):
    """A function that a tool call names."""

    name: str = Field(min_length=1)
    arguments: str | dict[str, Any] = ""


class ToolCall(StrictModel):
    """A call in an assistant message of the history."""

    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class TextPart(StrictModel):
    """A text part of a message's content."""

    type: Literal["text"]
    text: str


class ImageUrl(StrictModel):
    """A picture as a ``data:`` URL; ``detail`` may only ask for the model's own size."""

    url: str
    detail: Literal["auto", "high"] | None = None


class ImagePart(StrictModel):
    """A picture in a message's content; audio and files are refused."""

    type: Literal["image_url"]
    image_url: ImageUrl


class ChatMessage(StrictModel):
    """A message of the history."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Annotated[TextPart | ImagePart, Field(discriminator="type")]] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    id: str | None = None


class ToolFunction(StrictModel):
    """A tool's function; ``strict`` makes the engine enforce the schema."""

    name: Annotated[str, Field(min_length=1, pattern=r"^[^\s<>\"\\]+$"), AtMost(NAME_CHARACTERS)]
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(StrictModel):
    """A tool that the model may call."""

    type: Literal["function"]
    function: ToolFunction


class NamedFunction(StrictModel):
    """The function of a tool choice."""

    name: Annotated[str, AtMost(NAME_CHARACTERS)]


class NamedTool(StrictModel):
    """A tool choice that requires a call to one function."""

    type: Literal["function"]
    function: NamedFunction


class JsonSchema(StrictModel):
    """The schema that a reply must follow, ``strict`` or not."""

    name: Annotated[str, AtMost(NAME_CHARACTERS)]
    schema_: dict[str, Any] | None = Field(None, alias="schema")
    strict: bool | None = None


class ResponseFormat(StrictModel):
    """The required form of the reply."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(StrictModel):
    """Options of a streamed reply."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class SamplingRequest(StrictModel):
    """What a request may say whatever its prompt is: how to sample and to send the replies, and whose session it is."""

    model: Annotated[str, AtMost(MODEL_CHARACTERS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, ge=1e-6, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    repetition_penalty: float | None = Field(None, ge=0.01, le=2)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: Annotated[list[Annotated[int, Field(ge=0)]], AtMost(STOP_TOKENS)] | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = Field(None, ge=0)
    skip_special_tokens: bool | None = None
    seed: int | None = Field(None, ge=-(2**63), lt=2**63)
    n: Annotated[int, Field(ge=1), AtMost(CHOICES)] | None = None
    session_id: Annotated[str, AtMost(SESSION_ID)] | None = None
    session_done: bool | None = None

    @property
    def stops(self) -> list[str]:
        """The stop strings, as a list."""
        return [self.stop] if isinstance(self.stop, str) else list(self.stop or [])

    @property
    def shows_special_tokens(self) -> bool:
        """Whether the reply shows control tokens, except the one that ends it."""
        return self.skip_special_tokens is False

    @property
    def choices(self) -> int:
        """The number of requested choices."""
        return self.n or 1


class ChatRequest(SamplingRequest):
    """A chat completion request with every parameter that has a meaning here."""

    messages: list[ChatMessage] = Field(min_length=1)
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0), AtMost(TOP_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    modalities: list[str] | None = None
    reasoning_effort: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    turn_type: Literal["main", "side"] | None = None

    @property
    def offers_tools(self) -> bool:
        """Whether the model may call tools in this turn."""
        return bool(self.tools) and self.tool_choice != "none"

    @property
    def named_tool(self) -> str | None:
        """The one function that must be called, or None."""
        return self.tool_choice.function.name if isinstance(self.tool_choice, NamedTool) else None

    @property
    def must_call(self) -> bool:
        """Whether the reply must be a tool call."""
        return self.tool_choice == "required" or self.named_tool is not None

    @property
    def callable_tools(self) -> list[Tool]:
        """The tools that the reply may call."""
        tools = self.tools or [] if self.offers_tools else []
        return [tool for tool in tools if self.named_tool in (None, tool.function.name)]

    @property
    def tool_schemas(self) -> dict[str, dict[str, Any]]:
        """The JSON schema of each offered function's parameters."""
        return {tool.function.name: tool.function.parameters or {} for tool in self.tools or []}

    @property
    def response_schema(self) -> dict[str, Any] | None:
        """The JSON schema that the answer must follow, or None."""
        if self.response_format is None or self.response_format.type == "text":
            return None
        stated = self.response_format.json_schema
        return (stated.schema_ if stated else None) or {"type": "object"}

    @property
    def enforced_schemas(self) -> list[tuple[str, dict[str, Any]]]:
        """The JSON schemas that the engine may have to compile into a grammar, each with its request field."""
        answer = self.response_schema
        results = [] if answer is None else [("response_format", answer)]
        tools = self.callable_tools
        forced = answer is not None or self.must_call or self.parallel_tool_calls is False
        if forced or any(tool.function.strict for tool in tools):
            results += [("tools", tool.function.parameters or {}) for tool in tools]
        return results

    @property
    def requested_tokens(self) -> int | None:
        """The client's limit on the reply's tokens."""
        return self.max_completion_tokens if self.max_completion_tokens is not None else self.max_tokens

    @property
    def template_kwargs(self) -> dict[str, Any]:
        """Keywords for the chat template: ``reasoning_effort`` passes through, and ``none`` turns thinking off."""
        keywords: dict[str, Any] = {}
        if self.reasoning_effort is not None:
            keywords["reasoning_effort"] = self.reasoning_effort
            if self.reasoning_effort == "none":
                keywords["enable_thinking"] = False
        return keywords | (self.chat_template_kwargs or {})


RESERVED_TEMPLATE_KWARGS = frozenset(
    {
        "add_generation_prompt",
        "chat_template",
        "continue_final_message",
        "conversation",
        "max_length",
        "messages",
        "padding",
        "return_assistant_tokens_mask",
        "return_dict",
        "return_tensors",
        "tokenize",
        "tokenizer_kwargs",
        "tools",
        "truncation",
    }
)


Model = TypeVar("Model", bound=BaseModel)


def parse_request(body: bytes, context_length: int | None = None) -> tuple[ChatRequest, dict[str, Any]]:
    """Return the validated request, and its JSON without what this server does not read.

    Args:
        body: the request's JSON.
        context_length: tokens of the model's context, which bound the characters; None leaves those unbounded.

    Raises:
        ApiError: 400, naming the invalid parameter.
    """
    return read_values(parameters(body, "messages", ChatRequest, ADVICE), context_length)


def read_values(values: dict[str, Any], context_length: int | None = None) -> tuple[ChatRequest, dict[str, Any]]:
    """Return the validated request of known parameters, and the parameters without what this server does not read.

    Args:
        values: the parameters, null ones left out; this changes it.
        context_length: as for `parse_request`.

    Raises:
        ApiError: 400, naming the invalid parameter.
    """
    for name, known in (("messages", known_messages), ("tools", known_tools)):
        if name in values:
            values[name] = known(values[name])
    request = validated(ChatRequest, values, _advice_on)
    if context_length is not None:
        check_prompt_size(prompt_characters(values["messages"], values.get("tools") or ()), context_length)
    _check_meaning(request)
    return request, values


def parameters(body: bytes, field: str, model: type[BaseModel], advice: Mapping[str, str]) -> dict[str, Any]:
    """Return the parameters in a body, without null ones and those in `IGNORED`.

    Args:
        body: the request's JSON.
        field: its main part, for messages.
        model: declares the known parameters.
        advice: what to send in place of some unknown ones.

    Raises:
        ApiError: 400 for another body, or naming an unknown parameter.
    """
    raw = json_object(body, field)
    values = {name: value for name, value in raw.items() if value is not None and name not in IGNORED}
    for name in values.keys() - model.model_fields.keys():
        shown = name[:SHOWN_CHARACTERS]
        near = get_close_matches(shown, model.model_fields, n=1, cutoff=0.8)
        guess = f"did you mean {near[0]!r}? Otherwise leave it out" if near else "leave it out"
        raise unsupported(shown, advice.get(shown) or guess)
    return values


def validated(model: type[Model], values: Mapping[str, Any], advice_on: Callable[[Place], str | None]) -> Model:
    """Return the request of these parameters; ``advice_on`` gives other words than pydantic's about a place.

    Raises:
        ApiError: 400, naming the invalid parameter.
    """
    try:
        return model.model_validate(values)
    except ValidationError as error:
        raise from_validation(error, advice_on) from error


def json_object(body: bytes, field: str) -> dict[str, Any]:
    """Return the object in a body, of which ``field`` is the main part.

    Raises:
        ApiError: 400, if the body is no such JSON.
    """
    try:
        raw = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise bad_request(f"the body is not JSON: {error}", code="invalid_json") from error
    if not isinstance(raw, dict):
        raise bad_request(f"the body must be a JSON object with {field!r}", code="invalid_json")
    if nesting(body, JSON_DEPTH.most) > JSON_DEPTH.most:
        raise bad_request(
            f"the body nests deeper than {JSON_DEPTH.most} levels; send flatter JSON",
            code="invalid_json",
            bound=JSON_DEPTH,
        )
    return raw


def _advice_on(place: Place) -> str | None:
    """Return what to send where pydantic's words would name its types, or None."""
    if place[0] == "messages" and "content" in place:
        return (
            "content must be a string or a list of {'type': 'text', 'text': ...} and "
            "{'type': 'image_url', 'image_url': {'url': 'data:image/png;base64,...'}}, with no 'detail' but auto or high; "
            "audio, files and other kinds cannot be read"
        )
    return None


def _check_meaning(request: ChatRequest) -> None:
    """Refuse values that this server cannot honour."""
    if request.modalities not in (None, ["text"]):
        raise unsupported("modalities", ADVICE["modalities"])
    _check_tools(request)
    _check_pictures(request)
    limits = {request.max_tokens, request.max_completion_tokens} - {None}
    if len(limits) > 1:
        raise bad_request(
            f"max_tokens={request.max_tokens} and max_completion_tokens={request.max_completion_tokens} differ; "
            "send one of them",
            param="max_tokens",
        )
    if request.top_logprobs and not request.logprobs:
        raise bad_request("top_logprobs: send 'logprobs': true with it", param="top_logprobs")
    check_sampling(request)
    _check_template_keywords(request)
    check_grammar_size(request.enforced_schemas)
    if (answer := request.response_schema) is not None:
        check_enforced("response_format", answer)
    for tool in request.callable_tools:
        if tool.function.strict:
            check_enforced("tools", tool.function.parameters or {}, tool.function.name)
    if reserved := RESERVED_TEMPLATE_KWARGS & (request.chat_template_kwargs or {}).keys():
        raise bad_request(
            f"chat_template_kwargs: {min(reserved)!r} is reserved for the server; leave it out",
            param="chat_template_kwargs",
        )
    if all(message.role in ("system", "developer") for message in request.messages):
        raise bad_request("messages: send at least one user message", param="messages")


def check_sampling(request: SamplingRequest) -> None:
    """Refuse values that contradict each other, or are more than an engine takes.

    Raises:
        ApiError: 400, naming the parameter.
    """
    if len(request.stops) > STOP_STRINGS.most:
        raise bad_request(f"stop: send up to {STOP_STRINGS.most} strings", param="stop", bound=STOP_STRINGS)
    if sum(map(len, request.stops)) > STOP_CHARACTERS.most:
        raise bad_request(
            f"stop: send strings of at most {STOP_CHARACTERS.most} characters together",
            param="stop",
            bound=STOP_CHARACTERS,
        )
    if any(not stop for stop in request.stops):
        raise bad_request("stop: send strings that are not empty", param="stop")
    if request.ignore_eos and request.stop_token_ids:
        raise bad_request(
            "stop_token_ids has no effect with 'ignore_eos'; send only one of them, or a 'stop' string",
            param="stop_token_ids",
        )
    if len(request.logit_bias or ()) > BIASED_TOKENS.most:
        raise bad_request(
            f"logit_bias: send at most {BIASED_TOKENS.most} tokens", param="logit_bias", bound=BIASED_TOKENS
        )
    if any(not TOKEN_ID.fullmatch(token) for token in request.logit_bias or ()):
        raise bad_request("logit_bias: name tokens by their ids, like {'1734': -5}", param="logit_bias")


def _check_pictures(request: ChatRequest) -> None:
    """Refuse too many pictures, those that are elsewhere, and those where no template has a place for them."""
    count = 0
    for position, message in enumerate(request.messages):
        for number, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if not isinstance(part, ImagePart):
                continue
            where = f"messages.{position}.content.{number}"
            if message.role not in ("user", "tool"):
                raise bad_request(
                    f"{where}: a {message.role} message has no pictures; send them in user or tool messages",
                    param="messages",
                )
            encoded_file(part.image_url.url, where)
            count += 1
    if count > PICTURES.most:
        raise bad_request(
            f"messages: {count} pictures are too many; send at most {PICTURES.most}", param="messages", bound=PICTURES
        )


def _check_template_keywords(request: ChatRequest) -> None:
    """Refuse keywords for the chat template that are too large to render and store."""
    keywords = orjson.dumps(request.template_kwargs)
    if len(keywords) > TEMPLATE_KEYWORDS.most:
        raise bad_request(
            f"chat_template_kwargs: send at most {TEMPLATE_KEYWORDS.most} characters of JSON",
            param="chat_template_kwargs",
            bound=TEMPLATE_KEYWORDS,
        )
    if nesting(keywords, TEMPLATE_DEPTH.most) > TEMPLATE_DEPTH.most:
        raise bad_request(
            f"chat_template_kwargs nests deeper than {TEMPLATE_DEPTH.most} levels; send flatter values",
            param="chat_template_kwargs",
            bound=TEMPLATE_DEPTH,
        )


def _check_tools(request: ChatRequest) -> None:
    """Refuse a tool choice without its tools, and a response format without its schema."""
    names = request.tool_schemas.keys()
    if request.must_call and not names:
        raise bad_request("tool_choice: send the tools to choose from in 'tools'", param="tool_choice")
    if request.named_tool is not None and request.named_tool not in names:
        raise bad_request(f"tool_choice: 'tools' has no function {request.named_tool!r}", param="tool_choice")
    wanted = request.response_format
    if wanted is not None and (wanted.type == "json_schema") != (wanted.json_schema is not None):
        raise bad_request(
            "response_format: send {'type': 'json_schema', 'json_schema': {'name': ..., 'schema': {...}}}",
            param="response_format",
        )


PART_FIELDS = frozenset({"type", "text", "image_url"})
IMAGE_FIELDS = frozenset({"url", "detail"})


def known_messages(messages: object) -> object:
    """Return messages with their known fields only.

    Raises:
        ApiError: what `check_length` raises.
    """
    if not isinstance(messages, list):
        return messages
    check_length(len(messages), MESSAGES)
    items = sum(_items(message.get("content")) + _items(message.get("tool_calls")) for message in _objects(messages))
    check_length(items, MESSAGE_ITEMS)
    return [_known_message(message) for message in messages]


def known_tools(tools: object) -> object:
    """Return tools with their known fields only.

    Raises:
        ApiError: 400 for more tools than a request may have.
    """
    if not isinstance(tools, list):
        return tools
    if len(tools) > TOOLS.most:
        raise bad_request(f"tools: send at most {TOOLS.most}", param="tools", bound=TOOLS)
    return [_with_function(tool, TOOL_FIELDS, FUNCTION_FIELDS) for tool in tools]


def prompt_characters(messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> int:
    """Return the characters of all texts that a prompt may contain; of structures, those of their JSON.

    Pictures have bounds of their own (`openclaw.gateway.pictures`).
    """
    total = len(orjson.dumps(tools)) if tools else 0
    for message in messages:
        for value in message.values():
            total += len(value) if isinstance(value, str) else len(orjson.dumps(_without_urls(value))) if value else 0
    return total


def _without_urls(value: Any) -> Any:
    """Return a content without its pictures; any other value as it is."""
    if not isinstance(value, list) or not any("image_url" in part for part in _objects(value)):
        return value
    return [part for part in value if not (isinstance(part, dict) and "image_url" in part)]


def check_length(count: int, bound: Bound, param: str = "messages") -> None:
    """Refuse a conversation of more messages or parts than a request may have as one that the context cannot hold.

    A conversation grows to that by itself, and clients shorten it at no other error; ``param`` has it.

    Raises:
        ApiError: 400 ``context_length_exceeded``.
    """
    most = bound.most
    if count > most:
        raise too_long(
            f"{param}: this conversation is longer than the context may be. It has {count} {bound.unit} ({bound.help}), and "
            f"a request may have {most}. Please reduce the length of the {param}.",
            param=param,
            size=count,
            most=most,
            unit=bound.unit,
            bound=bound,
        )


def check_prompt_size(characters: int, context_length: int, param: str = "messages") -> None:
    """Refuse a prompt that cannot fit the context, without tokenising it; ``param`` has it.

    Raises:
        ApiError: 400 ``context_length_exceeded``.
    """
    if characters > context_length * PROMPT_CHARACTERS.most:
        raise too_long(
            f"This model's maximum context length is {context_length} tokens. However, your {param} {_have(param)} {characters} "
            f"characters, which are more tokens than that. Please reduce the length of the {param}.",
            param=param,
            size=characters // PROMPT_CHARACTERS.most,
            most=context_length,
            bound=PROMPT_CHARACTERS,
        )


def _have(param: str) -> str:
    return "have" if param.endswith("s") else "has"


def _items(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def _objects(values: Sequence[object]) -> list[dict[str, Any]]:
    return [value for value in values if isinstance(value, dict)]


def _kept(value: object, fields: Set[str]) -> Any:
    """Return an object with ``fields`` only; any other value as it is."""
    if not isinstance(value, dict):
        return value
    return value if value.keys() <= fields else {name: inner for name, inner in value.items() if name in fields}


def _known_message(message: object) -> object:
    kept = _kept(message, MESSAGE_FIELDS)
    if not isinstance(kept, dict):
        return kept
    if "id" in kept and not isinstance(kept["id"], str):
        kept = {name: value for name, value in kept.items() if name != "id"}
    changes: dict[str, Any] = {}
    if isinstance(content := kept.get("content"), list):
        changes["content"] = [_known_part(part) for part in content]
    if isinstance(calls := kept.get("tool_calls"), list):
        changes["tool_calls"] = [_with_function(call, CALL_FIELDS, CALLED_FIELDS) for call in calls]
    return {**kept, **changes} if changes else kept


def _known_part(part: object) -> object:
    kept = _kept(part, PART_FIELDS)
    if isinstance(kept, dict) and isinstance(image := kept.get("image_url"), dict):
        return {**kept, "image_url": _kept(image, IMAGE_FIELDS)}
    return kept


def _with_function(value: object, fields: Set[str], function_fields: Set[str]) -> object:
    kept = _kept(value, fields)
    if isinstance(kept, dict) and isinstance(function := kept.get("function"), dict):
        return {**kept, "function": _kept(function, function_fields)}
    return kept


UNSEEN_PICTURE = "[a picture that this model cannot see]"
"""Stands where a tool gave a picture that cannot be used. A refusal would end the session of an agent, which sends it again."""
DATA_URL = re.compile(r"data:image/(?:png|jpeg|jpg|webp|gif);base64,", re.IGNORECASE)


def encoded_file(url: str, where: str) -> str:
    """Return the base64 text of a picture's URL.

    Args:
        url: of the picture.
        where: its place in the request, for errors.

    Raises:
        ApiError: 400 for a URL of another kind, or a file that is too large.
    """
    start = DATA_URL.match(url)
    if start is None:
        raise bad_request(
            f"{where}: the picture is not a data:image/png;base64,... URL (or jpeg, webp, gif); this server fetches nothing, "
            "so send the file itself",
            param="messages",
        )
    size = (len(url) - start.end()) * 3 // 4
    if size > PICTURE_BYTES.most:
        raise bad_request(
            f"{where}: the picture has {size} bytes; send at most {PICTURE_BYTES.most}",
            param="messages",
            bound=PICTURE_BYTES,
        )
    return url[start.end() :]


def is_encoded_file(url: str) -> bool:
    """Return whether `encoded_file` takes a picture's URL."""
    try:
        encoded_file(url, "")
    except ApiError:
        return False
    return True


def file_of(url: str, where: str) -> bytes:
    """Return the file of a picture's URL.

    Raises:
        ApiError: 400 as `encoded_file`, or if the text is not base64.
    """
    try:
        return base64.b64decode(encoded_file(url, where), validate=True)
    except (binascii.Error, ValueError) as error:
        raise bad_request(f"{where}: the picture is not valid base64", param="messages") from error
