"""``POST /v1/chat/completions``: OpenAI's chat completions, whose request is the canonical form (`openclaw.gateway.schema`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from chat_codec.reply_parser import Content, Delta, Reasoning, ToolCallArguments, ToolCallStart
from openclaw.gateway.capture import Capture, Step, usage
from openclaw.gateway.dialects.dialect import COMMENT, Dialect, Form, Head, Question, Writer, event
from openclaw.gateway.errors import ApiError
from openclaw.gateway.schema import SamplingRequest, parse_request

DONE = b"data: [DONE]\n\n"


@dataclass(frozen=True)
class ChatForm(Form):
    """The answers of chat completions.

    Attributes:
        logprobs: whether the client asked for log-probabilities.
        include_usage: whether it asked for the usage of a stream.
    """

    logprobs: bool = False
    include_usage: bool = False

    def head(self, head: Head) -> dict[str, Any]:
        """Return the fields of every answer to one request; ``system_fingerprint`` names the weights."""
        return {
            "id": head.id,
            "object": "chat.completion",
            "created": int(head.created),
            "model": head.model,
            "system_fingerprint": f"weights-{head.weight_version}",
        }

    def choice(self, capture: Capture) -> dict[str, Any]:
        """Return one choice of a whole reply."""
        return {
            "index": capture.index,
            "message": capture.builder.message(),
            "logprobs": None if capture.entries is None else _logprobs_field(capture.content_logprobs),
            "finish_reason": capture.finish_reason or "stop",
        }

    def whole(self, head: Head, captures: Sequence[Capture]) -> dict[str, Any]:
        """Return a reply that is not streamed."""
        return {**self.head(head), "choices": list(map(self.choice, captures)), "usage": usage(captures)}

    def writer(self, head: Head, captures: Sequence[Capture]) -> Writer:
        """Return the writer of a stream's chunks."""
        return ChunkWriter(self, head)

    def heartbeat(self) -> bytes:
        """Return a comment, which clients skip."""
        return COMMENT

    def failure(self, error: ApiError) -> bytes:
        """Return the event with an error."""
        return event(error.body())


class ChunkWriter(Writer):
    """Writes the chunks of one streamed request, each with the ``index`` of its choice."""

    def __init__(self, form: ChatForm, head: Head) -> None:
        """Start a stream of ``form``."""
        self._head = {**form.head(head), "object": "chat.completion.chunk"}
        self._begin = b"data: " + orjson.dumps(self._head)[:-1] + b',"choices":['
        self._end = b'],"usage":null}\n\n' if form.include_usage else b"]}\n\n"
        self._logprobs = form.logprobs
        self._include_usage = form.include_usage
        self._spoken: set[int] = set()

    def step(self, step: Step) -> bytes:
        """Return the chunks of a choice's next step; the first chunk has the role."""
        entries = step.logprobs
        data = b""
        if step.index not in self._spoken:
            self._spoken.add(step.index)
            data = self._chunk(step.index, {"role": "assistant", "content": ""})
        for delta in step.deltas:
            data += self._chunk(step.index, _delta_fields(delta), logprobs=entries)
            entries = []
        if entries:
            data += self._chunk(step.index, {"content": ""}, logprobs=entries)
        return data

    def end(self, captures: Sequence[Capture]) -> bytes:
        """Return the chunks with the finish reasons, the usage if the client asked for it, and the end."""
        data = b"".join(self._chunk(capture.index, {}, capture.finish_reason or "stop") for capture in captures)
        if self._include_usage:
            data += event({**self._head, "choices": [], "usage": usage(captures)})
        return data + DONE

    def _chunk(
        self,
        index: int,
        delta: dict[str, Any],
        finish_reason: str | None = None,
        logprobs: Sequence[dict[str, Any]] = (),
    ) -> bytes:
        numbers = _logprobs_field(logprobs) if self._logprobs and logprobs else None
        part = {"index": index, "delta": delta, "logprobs": numbers, "finish_reason": finish_reason}
        return self._begin + orjson.dumps(part) + self._end


def _logprobs_field(entries: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"content": list(entries), "refusal": None}


def _delta_fields(delta: Delta) -> dict[str, Any]:
    match delta:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return {"reasoning_content": text}
        case ToolCallStart(index, id_, name):
            call = {"index": index, "id": id_, "type": "function", "function": {"name": name, "arguments": ""}}
            return {"tool_calls": [call]}
        case ToolCallArguments(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}


def includes_usage(request: SamplingRequest) -> bool:
    """Return whether a stream's end tells the usage."""
    return bool(request.stream_options and request.stream_options.include_usage)


class Chat(Dialect):
    """Chat completions."""

    path = "/v1/chat/completions"
    form = ChatForm

    def read(self, body: bytes, context_length: int) -> Question:
        """Return what a body asks."""
        request, raw = parse_request(body, context_length)
        return Question(request, raw, ChatForm(bool(request.logprobs), includes_usage(request)))


CHAT = Chat()
