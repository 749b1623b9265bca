"""``POST /v1/completions``: a text or token ids that the model continues, without a chat template.

The prompt is whole: nobody renders it, and control tokens that a text spells count. Each reply is a side turn, so it is
never judged or trained; the ledger has its exact ids and log-probabilities, as of any turn. Its text is what the model wrote,
thoughts and calls included.

Guarantees: a parameter either has its OpenAI meaning, or is in `IGNORED` because it cannot change a reply here, or the
request is a 400 that names it. What both APIs have is checked as in `openclaw.gateway.schema`. Pure functions and the wire
format; `openclaw.gateway.chat` answers.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field

from chat_codec.detokenize import Vocabulary
from chat_codec.reply_parser import Content
from openclaw.config.bounds import TEXT_REPLIES, TOP_LOGPROBS
from openclaw.gateway.capture import Capture, Step, usage
from openclaw.gateway.dialects.chat import DONE, ChatForm, includes_usage
from openclaw.gateway.dialects.dialect import Dialect, Head, Question, Writer, event
from openclaw.gateway.errors import Place, bad_request, too_long, unsupported
from openclaw.gateway.schema import (
    AtMost,
    ChatRequest,
    SamplingRequest,
    check_prompt_size,
    check_sampling,
    parameters,
    validated,
)

DEFAULT_REPLY = 16
"""Most tokens of a reply to a request that does not say, as in OpenAI's API."""
ADVICE = {
    "messages": "POST /v1/chat/completions takes messages; here the text is 'prompt'",
    "suffix": "the model continues a text at its end; leave it out",
    "top_logprobs": "send 'logprobs' with the number of alternatives",
}
NO_MESSAGES = [{"role": "user", "content": ""}]
"""In the canonical form, which has at least one."""
TokenIds = list[Annotated[int, Field(ge=0)]]


class CompletionRequest(SamplingRequest):
    """A text completion request with every parameter that has a meaning here."""

    prompt: str | TokenIds | list[str] | list[TokenIds]
    logprobs: Annotated[int, Field(ge=0), AtMost(TOP_LOGPROBS)] | None = None
    echo: bool | None = None
    best_of: int | None = Field(None, ge=1)

    @property
    def prompts(self) -> Sequence[str] | Sequence[Sequence[int]]:
        """The prompts, each a text or ids."""
        return _prompts(self.prompt)


def parse_completion(body: bytes, context_length: int) -> CompletionRequest:
    """Return the validated request.

    Args:
        body: the request's JSON.
        context_length: tokens of the model's context, which bound each prompt.

    Raises:
        ApiError: 400, naming the invalid parameter.
    """
    values = parameters(body, "prompt", CompletionRequest, ADVICE)
    for prompt in _prompts(values.get("prompt")):
        if isinstance(prompt, str):
            check_prompt_size(len(prompt), context_length, "prompt")
        elif len(prompt) >= context_length:
            raise too_long(
                f"This model's maximum context length is {context_length} tokens. However, your prompt has {len(prompt)} tokens. "
                "Please reduce the length of the prompt.",
                param="prompt",
                size=len(prompt),
                most=context_length,
            )
    request = validated(CompletionRequest, values, _advice_on)
    _check_meaning(request)
    return request


def _prompts(prompt: Any) -> Sequence[str] | Sequence[Sequence[int]]:
    """Return the prompts in a body, each a text or ids.

    Raises:
        ApiError: 400 for anything else, or more prompts than a request may have.
    """
    several = isinstance(prompt, list) and not (prompt and all(map(_is_id, prompt)))
    prompts = prompt if several else [prompt]
    if len(prompts) > TEXT_REPLIES.most:
        raise _too_many(len(prompts))
    texts = all(isinstance(item, str) for item in prompts)
    if not texts and not all(isinstance(item, list) and all(map(_is_id, item)) for item in prompts):
        raise bad_request("prompt: send a text, a list of token ids, or a list of either", param="prompt")
    if not prompts or not all(prompts):
        raise bad_request("prompt: send a text, or token ids, that is not empty", param="prompt")
    return prompts


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _advice_on(place: Place) -> str | None:
    """Return what to send where pydantic's words would name its types, or None."""
    if place[0] == "logprobs":
        return f"send the number of alternatives, 0 to {TOP_LOGPROBS.most}"
    return None


def _check_meaning(request: CompletionRequest) -> None:
    if (count := len(request.prompts) * request.choices) > TEXT_REPLIES.most:
        raise _too_many(count)
    if (request.best_of or 1) > request.choices:
        raise unsupported("best_of", "every reply is returned; send 'n' with the number")
    if request.echo and request.logprobs is not None:
        raise unsupported("logprobs", "with 'echo' the prompt's tokens would need them, too; leave one of both out")
    check_sampling(request)


def _too_many(count: int) -> Exception:
    return bad_request(
        f"prompt: {count} replies are too many; send at most {TEXT_REPLIES.most} prompts times n",
        param="prompt",
        bound=TEXT_REPLIES,
    )


def as_chat(request: CompletionRequest) -> ChatRequest:
    """Return the request in the form that plans its sampling and its capture."""
    values = {name: getattr(request, name) for name in SamplingRequest.model_fields}
    values |= {"messages": NO_MESSAGES, "max_tokens": request.max_tokens or DEFAULT_REPLY}
    values |= {"logprobs": request.logprobs is not None, "top_logprobs": request.logprobs}
    return ChatRequest.model_construct(**values)


def check_prompt_ids(ids: Sequence[int], vocabulary: Vocabulary, placeholders: frozenset[int]) -> None:
    """Refuse ids under which an engine would break.

    Raises:
        ApiError: 400 for an id outside the vocabulary, or one that stands for a picture, and without any id.
    """
    if not ids:
        raise bad_request("prompt: the tokenizer reads no token in it; send another text", param="prompt")
    if (largest := max(ids)) >= vocabulary.size:
        raise bad_request(
            f"prompt: there is no token {largest}; the model has tokens 0 to {vocabulary.size - 1}", param="prompt"
        )
    if not placeholders.isdisjoint(ids):
        raise bad_request(
            "prompt: it has the placeholder of a picture; send pictures to POST /v1/chat/completions", param="prompt"
        )


@dataclass(frozen=True)
class TextForm(ChatForm):
    """The answers of text completions; ``echo``: each choice begins with its prompt."""

    echo: bool = False

    def head(self, head: Head) -> dict[str, Any]:
        """Return the fields of every answer to one request."""
        return {**super().head(head), "object": "text_completion"}

    def choice(self, capture: Capture) -> dict[str, Any]:
        """Return one choice of a whole reply."""
        offsets = Offsets()
        return {
            "index": capture.index,
            "text": self.echoed(capture) + text_of(capture),
            "logprobs": None if capture.entries is None else offsets.field(capture.content_logprobs),
            "finish_reason": capture.finish_reason or "stop",
        }

    def echoed(self, capture: Capture) -> str:
        """Return the prompt of a choice if the client wants it back."""
        return capture.prompt.messages[0]["content"] if self.echo else ""

    def writer(self, head: Head, captures: Sequence[Capture]) -> Writer:
        """Return the writer of a stream's chunks."""
        return TextWriter(self, head, captures)


def text_of(capture: Capture) -> str:
    """Return what the model wrote."""
    return capture.builder.message().get("content") or ""


class Offsets:
    """Log-probabilities in the older format, with the place of each token in the text."""

    def __init__(self) -> None:
        self._characters = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def field(self, entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the field of the next tokens; the alternatives include the sampled token, as in OpenAI's API."""
        offsets: list[int] = []
        for entry in entries:
            offsets.append(self._characters)
            self._characters += len(self._decoder.decode(bytes(entry["bytes"])))
        asked = any(entry["top_logprobs"] for entry in entries)
        return {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [_alternatives(entry) for entry in entries] if asked else None,
            "text_offset": offsets,
        }


def _alternatives(entry: Mapping[str, Any]) -> dict[str, float]:
    likely = {item["token"]: item["logprob"] for item in entry["top_logprobs"]}
    return {**likely, entry["token"]: entry["logprob"]}


class TextWriter(Writer):
    """Writes the chunks of one streamed text completion."""

    def __init__(self, form: TextForm, head: Head, captures: Sequence[Capture]) -> None:
        self._head = form.head(head)
        self._echoes = {capture.index: form.echoed(capture) for capture in captures}
        self._logprobs = form.logprobs
        self._include_usage = form.include_usage
        self._offsets: dict[int, Offsets] = {}

    def step(self, step: Step) -> bytes:
        """Return the chunk of a choice's next step, if it has a text or numbers; the first one echoes the prompt."""
        text = self._echoes.pop(step.index, "") + "".join(
            delta.text for delta in step.deltas if isinstance(delta, Content)
        )
        if not text and not step.logprobs:
            return b""
        numbers = None
        if self._logprobs and step.logprobs:
            numbers = self._offsets.setdefault(step.index, Offsets()).field(step.logprobs)
        return self._chunk(step.index, text, numbers, None)

    def end(self, captures: Sequence[Capture]) -> bytes:
        """Return the chunks with the finish reasons, the usage if the client asked for it, and the end."""
        data = b"".join(
            self._chunk(capture.index, self._echoes.pop(capture.index, ""), None, capture.finish_reason or "stop")
            for capture in captures
        )
        if self._include_usage:
            data += event({**self._head, "choices": [], "usage": usage(captures)})
        return data + DONE

    def _chunk(self, index: int, text: str, logprobs: dict[str, Any] | None, reason: str | None) -> bytes:
        part = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        further = {"usage": None} if self._include_usage else {}
        return event({**self._head, "choices": [part], **further})


class TextCompletions(Dialect):
    """Text completions."""

    path = "/v1/completions"
    form = TextForm

    def read(self, body: bytes, context_length: int) -> Question:
        """Return what a body asks."""
        request = parse_completion(body, context_length)
        form = TextForm(request.logprobs is not None, includes_usage(request), bool(request.echo))
        return Question(as_chat(request), {"messages": NO_MESSAGES}, form, request.prompts)


TEXT = TextCompletions()
