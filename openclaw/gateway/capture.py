"""A reply under way, token by token, and the turn that it becomes.

Guarantees: ids, log-probabilities and weight versions are the engine's, unchanged; the message is what the deltas that
the client got add up to. Owns the state of one reply.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from openclaw.engine_client import TokenChunk
from openclaw.gateway.detokenize import Detokenizer
from openclaw.gateway.parsers.deltas import Delta, MessageBuilder, ToolCallStart
from openclaw.gateway.parsers.reply import ReplyParser
from openclaw.gateway.schema import ChatRequest
from openclaw.ledger.records import Message, Turn, VersionSpan
from openclaw.sessions import TurnContext

FinishReason = Literal["stop", "length", "tool_calls", "abort"]


@dataclass(frozen=True)
class Prompt:
    """A request that is ready to be answered.

    Attributes:
        id: of the completion and of the turn.
        request: as it was checked.
        messages: as they were sent.
        tools: as they were sent, None when the model may not call any.
        ids: the rendered prompt.
        inside_reasoning: whether the prompt ends in an open `<think>`.
        sampling: what the engine is asked.
        temperature: of sampling.
        top_p: of sampling.
        created_at: when the request arrived, seconds since the epoch.
        excluded: why the turn must not be trained, known before it is answered; or None.
    """

    id: str
    request: ChatRequest
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    ids: list[int]
    inside_reasoning: bool
    sampling: dict[str, Any]
    temperature: float
    top_p: float
    created_at: float
    excluded: str | None = None


@dataclass
class Capture:
    """Collects the reply to ``prompt``."""

    prompt: Prompt
    detokenizer: Detokenizer
    parser: ReplyParser
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    builder: MessageBuilder = field(default_factory=MessageBuilder)
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0

    def add(self, chunk: TokenChunk) -> list[Delta]:
        """Take what the engine sent; return what the client gets."""
        start = len(self.ids)
        self.ids.extend(chunk.ids)
        self.logprobs.extend(chunk.logprobs)
        self.cached_tokens = max(self.cached_tokens, chunk.cached_tokens)
        if chunk.ids:
            self._add_span(VersionSpan(chunk.weight_version, start, len(self.ids)))
        if chunk.versions:
            first = chunk.versions[0].start
            kept = [span for span in self.spans if span.start < first]
            self.spans = [VersionSpan(span.version, span.start, min(span.end, first)) for span in kept]
            for span in chunk.versions:
                self._add_span(span)
        deltas = self._built(self.parser.push(self.detokenizer.push(chunk.ids)))
        if chunk.finish is not None or self.parser.stopped:
            deltas += self._built(self._finish(chunk.finish))
        return deltas

    def _built(self, deltas: list[Delta]) -> list[Delta]:
        for delta in deltas:
            self.builder.add(delta)
        return deltas

    @property
    def weight_version(self) -> str:
        """The weights that sampled the last token so far."""
        return self.spans[-1].version if self.spans else ""

    def usage(self) -> dict[str, Any]:
        """Return OpenAI's ``usage``, counted in the tokens that the engine saw and sampled."""
        return {
            "prompt_tokens": len(self.prompt.ids),
            "completion_tokens": len(self.ids),
            "total_tokens": len(self.prompt.ids) + len(self.ids),
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }

    def turn(self, context: TurnContext, finished_at: float) -> Turn:
        """Return the turn as the ledger keeps it; a reply that was not finished is ``abort``."""
        return Turn(
            id=self.prompt.id,
            session_id=context.session_id,
            index=0,
            kind=context.kind,
            created_at=self.prompt.created_at,
            finished_at=finished_at,
            messages=self.prompt.messages,
            prompt_ids=self.prompt.ids,
            response_ids=self.ids,
            response_logprobs=self.logprobs,
            finish_reason=self.finish_reason or "abort",
            response_message=self.builder.message(),
            temperature=self.prompt.temperature,
            top_p=self.prompt.top_p,
            weight_versions=self.spans,
            tools=self.prompt.tools,
            chat_template_kwargs=self.prompt.request.template_kwargs,
            reason=self.prompt.excluded,
        )

    def _finish(self, engine_reason: str | None) -> list[Delta]:
        deltas = [] if self.parser.stopped else self.parser.push(self.detokenizer.finish())
        deltas += self.parser.finish()
        calls = self.builder.has_tool_calls or any(isinstance(delta, ToolCallStart) for delta in deltas)
        if engine_reason == "length" and not self.parser.stopped:
            self.finish_reason = "length"
        else:
            self.finish_reason = "tool_calls" if calls else "stop"
        return deltas

    def _add_span(self, span: VersionSpan) -> None:
        """Append a span, joined to the one before when both are of the same weights."""
        last = self.spans[-1] if self.spans else None
        if last and last.version == span.version and last.end == span.start:
            self.spans[-1] = VersionSpan(span.version, last.start, span.end)
        elif span.end > span.start:
            self.spans.append(span)
