"""A running reply, token by token, and the turn that it becomes.

Guarantees: ids, log-probabilities and weight versions are the engine's, unchanged. The message is the sum of the deltas
that the client got. For the client, log-probabilities have OpenAI's shape, ``{"token", "logprob", "bytes",
"top_logprobs"}`` for each token, at the sampling temperature. An entry is released once its text can no longer be part of
a stop string. Tokens of a stop string and control tokens (end of turn) have no entry; reasoning and tool calls do. Each
class owns the state of one reply.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from chat_codec.detokenize import Detokenizer, Vocabulary
from chat_codec.reply_parser import Content, Delta, MessageBuilder, ReplyParser, ToolCallStart, merged
from groundwork.chat_messages import Message
from openclaw.engine.client import EnginePictures, TokenChunk
from openclaw.exceptions import EngineProtocolError
from openclaw.gateway.sampling import SamplingPlan, exclusion
from openclaw.gateway.schema import ChatRequest
from openclaw.ledger.records import PlainPart, SeenPicture, Tokens, TopK, Turn, VersionSpan
from openclaw.lessons.lesson import UNDER_LESSON
from openclaw.owners import episode_of, owner_of, turn_id
from openclaw.sessions import TurnContext

IMPOSSIBLE = -1e30
"""A grammar gives excluded tokens the lowest float, or null, as log-probability."""


class LogprobEntries:
    """The entries of one reply, buffered until their text is released."""

    def __init__(self, vocabulary: Vocabulary, top: int, silent: frozenset[int] | None = None) -> None:
        """Start a reply with ``top`` alternatives per token; ``silent`` replaces the ids without text."""
        self._vocabulary = vocabulary
        self._silent = vocabulary.silent if silent is None else silent
        self._top = top
        self._held: deque[tuple[int, dict[str, Any]]] = deque()

    def add(self, start: int, token: int, logprob: float, alternatives: Sequence[Sequence[Any]]) -> None:
        """Add a sampled token.

        Args:
            start: number of characters before it.
            token: its id.
            logprob: the engine's value.
            alternatives: ``[logprob, id, ...]`` of the most likely tokens; impossible ones are dropped.
        """
        if token in self._silent:
            return
        entry = self._entry(token, logprob)
        likely = [item for item in alternatives if item[0] is not None and item[0] > IMPOSSIBLE][: self._top]
        entry["top_logprobs"] = [self._entry(item[1], item[0]) for item in likely]
        self._held.append((start, entry))

    def release(self, end: int | None) -> list[dict[str, Any]]:
        """Return the entries whose text begins before character ``end``, or all for None."""
        released = []
        while self._held and (end is None or self._held[0][0] < end):
            released.append(self._held.popleft()[1])
        return released

    def _entry(self, token: int, logprob: float) -> dict[str, Any]:
        data = self._vocabulary.token_bytes(token)
        return {"token": data.decode("utf-8", "replace"), "logprob": logprob, "bytes": list(data)}


LOWEST = -3.4028234663852886e38
"""What the engine gives a token without any probability; JSON's null, for minus infinity, is stored as this too."""

PLACEHOLDER = "placeholder"
"""Why a turn is not trained: its reply has a picture's placeholder, for which there is no picture."""

FinishReason = Literal["stop", "length", "tool_calls", "abort"]


@dataclass(frozen=True)
class Prompt:
    """A request that is ready for the engine.

    Attributes:
        id: of the completion and the turn.
        model: name under which the client knows the model.
        request: the validated request.
        messages: as the client sent them, with named pictures.
        tools: as the client sent them, None if the model may not call any.
        ids: the rendered prompt, with each picture's placeholder repeated.
        inside_reasoning: whether the prompt ends in the opening tag of a thought.
        plan: sampling of the reply.
        created_at: when the request arrived, seconds since the epoch.
        topk: how many of the policy's most likely tokens the turn keeps at each position; 0 for none.
        pictures: of the prompt, in order.
        for_engine: what the engine gets of them, or None without any.
        placeholders: ids of the model's placeholders for media.
        plain: finds out how the prompt without lessons differs; None if this one has none.
        lessons: id and text of each lesson that it has.
        version: of the weights that the request names (`openclaw.gateway.earlier`); None: those that serve.
    """

    id: str
    model: str
    request: ChatRequest
    messages: list[Message]
    tools: list[dict[str, Any]] | None
    ids: list[int]
    inside_reasoning: bool
    plan: SamplingPlan
    created_at: float
    topk: int = 0
    pictures: tuple[SeenPicture, ...] = ()
    for_engine: EnginePictures | None = field(default=None, repr=False)
    placeholders: frozenset[int] = frozenset()
    plain: Callable[[], Awaitable[PlainPart]] | None = None
    lessons: tuple[tuple[str, str], ...] = ()
    version: str | None = None

    @property
    def sampling(self) -> dict[str, Any]:
        """The engine's sampling parameters."""
        return self.plan.parameters

    @property
    def top_logprobs(self) -> int:
        """How many of the most likely tokens the engine reports: enough for the client and for the turn."""
        return max(self.request.top_logprobs or 0, self.topk)


@dataclass(frozen=True, slots=True)
class Step:
    """The next piece of a choice for the client: deltas, and the log-probabilities of their tokens."""

    index: int
    deltas: list[Delta]
    logprobs: list[dict[str, Any]]


@dataclass
class Capture:
    """Collects choice number ``index`` of the reply to ``prompt``.

    ``entries`` is set if the client asked for logprobs. ``unsaid`` holds end tokens that give no text. ``stored`` says
    whether the client may ask for the reply again; only its recording shows a secret.
    """

    prompt: Prompt
    detokenizer: Detokenizer
    parser: ReplyParser
    index: int = 0
    entries: LogprobEntries | None = None
    unsaid: frozenset[int] = frozenset()
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    spans: list[VersionSpan] = field(default_factory=list)
    builder: MessageBuilder = field(default_factory=MessageBuilder)
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    characters: int = 0
    undecided_tokens: int = 0
    content_logprobs: list[dict[str, Any]] = field(default_factory=list)
    topk: TopK = field(default_factory=lambda: TopK([], []))
    fallback: str | None = None
    stored: bool = True

    @property
    def id(self) -> str:
        """The turn's id: the completion's id, plus ``.index`` for every choice but the first."""
        return turn_id(self.prompt.id, self.index)

    def add(self, chunk: TokenChunk) -> Step:
        """Add a chunk of the engine; return the client's next piece."""
        start = len(self.ids)
        self.ids.extend(chunk.ids)
        self.logprobs.extend(chunk.logprobs)
        if self.prompt.topk:
            self._keep_topk(chunk)
        self.cached_tokens = max(self.cached_tokens, chunk.cached_tokens)
        self.fallback = chunk.fallback or self.fallback
        if chunk.ids:
            self._add_span(chunk.weight_version, start, len(self.ids))
        if chunk.versions:
            first = chunk.versions[0].start
            kept = [span for span in self.spans if span.start < first]
            self.spans = [VersionSpan(span.version, span.start, min(span.end, first)) for span in kept]
            for span in chunk.versions:
                self._add_span(span.version, span.start, span.end)
        deltas = self._built(self._read(chunk))
        if chunk.finish is not None or self.parser.stopped:
            deltas += self._built(self._finish(chunk.finish))
        return Step(self.index, deltas, self._release())

    def say(self, text: str) -> Step:
        """End an empty choice with a text that no model wrote; return the client's only piece."""
        self.finish_reason = "stop"
        return Step(self.index, self._built([Content(text)]), [])

    def _keep_topk(self, chunk: TokenChunk) -> None:
        """Keep the most likely tokens of each position, in the engine's order.

        Raises:
            EngineProtocolError: if the engine did not report as many as it was asked for.
        """
        count = self.prompt.topk
        rows = [row[:count] for row in chunk.top]
        if len(rows) != len(chunk.ids) or any(len(row) != count for row in rows):
            raise EngineProtocolError(f"the engine did not report the {count} most likely tokens of each position")
        self.topk.ids.extend([entry[1] for entry in row] for row in rows)
        self.topk.log_probs.extend([LOWEST if entry[0] is None else entry[0] for entry in row] for row in rows)

    def _read(self, chunk: TokenChunk) -> list[Delta]:
        """Return the deltas of a chunk, parsed token by token if each text must be assigned to its token."""
        ids = chunk.ids
        if chunk.finish == "stop" and ids and ids[-1] in self.unsaid:
            ids = ids[:-1]
        if self.entries is None and not self.parser.thinking:
            return self._push(ids)
        deltas: list[Delta] = []
        for position, token in enumerate(ids):
            if self.entries is not None and not self.parser.stopped:
                alternatives = chunk.top[position] if chunk.top else ()
                self.entries.add(self.characters, token, chunk.logprobs[position], alternatives)
            self.undecided_tokens += self.parser.thinking
            deltas += self._push([token])
        return merged(deltas)

    def _push(self, ids: list[int]) -> list[Delta]:
        text = self.detokenizer.push(ids)
        self.characters += len(text)
        return self.parser.push(text)

    def _built(self, deltas: list[Delta]) -> list[Delta]:
        for delta in deltas:
            self.builder.add(delta)
        return deltas

    def _release(self) -> list[dict[str, Any]]:
        if self.entries is None:
            return []
        everything = self.finish_reason is not None and not self.parser.stopped
        released = self.entries.release(None if everything else self.parser.passed)
        self.content_logprobs += released
        return released

    @property
    def weight_version(self) -> str:
        """The weights that sampled the newest token."""
        return self.spans[-1].version if self.spans else ""

    @property
    def reasoning_tokens(self) -> int:
        """The number of tokens up to the end of the thought, inclusive."""
        return self.undecided_tokens if self.parser.thought else 0

    def turn(self, context: TurnContext, finished_at: float, plain: PlainPart | None) -> Turn:
        """Return the turn for the ledger, whose prompt without lessons differs by ``plain``; an unfinished reply has the finish
        reason ``abort``.
        """
        reason = exclusion(self.prompt.plan, self.ids, stopped=self.parser.stopped)
        if reason is None and not self.prompt.placeholders.isdisjoint(self.ids):
            reason = PLACEHOLDER
        if reason is None and plain is not None and episode_of(owner_of(context.session_id)) is not None:
            reason = UNDER_LESSON
        trained = context.kind == "main" and reason is None and self.finish_reason is not None
        return Turn(
            id=self.id,
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
            temperature=self.prompt.plan.temperature,
            top_p=self.prompt.plan.top_p,
            weight_versions=self.spans,
            tools=self.prompt.tools,
            chat_template_kwargs=self.prompt.request.template_kwargs,
            reason=reason,
            malformed_calls=self.parser.malformed,
            pictures=self.prompt.pictures,
            plain=plain,
            lessons=self.prompt.lessons,
            adapter_fallback=self.fallback,
            response_topk=self.topk if self.prompt.topk and trained else None,
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

    def _add_span(self, version: str, start: int, end: int) -> None:
        """Append a span, or extend the last one if the weights are the same."""
        last = self.spans[-1] if self.spans else None
        if last and last.version == version and last.end == start:
            self.spans[-1] = VersionSpan(version, last.start, end)
        elif end > start:
            self.spans.append(VersionSpan(version, start, end))


def token_counts(captures: Sequence[Capture]) -> tuple[int, int]:
    """Return the tokens of the prompts, each counted once, and of all choices."""
    return sum(len(capture.prompt.ids) for capture in _firsts(captures)), sum(len(capture.ids) for capture in captures)


def spent(captures: Sequence[Capture]) -> list[Tokens]:
    """Return what each choice adds to its owner's meters: together what `usage` says."""
    firsts = {id(capture) for capture in _firsts(captures)}
    result: list[Tokens] = []
    for capture in captures:
        read = len(capture.prompt.ids) if id(capture) in firsts else 0
        cached = min(read, capture.cached_tokens)
        result.append(Tokens(prefill=read - cached, cached=cached, sampled=len(capture.ids)))
    return result


def _firsts(captures: Sequence[Capture]) -> list[Capture]:
    """Return the first choice of each prompt."""
    return list({id(capture.prompt): capture for capture in reversed(captures)}.values())


def usage(captures: Sequence[Capture]) -> dict[str, Any]:
    """Return OpenAI's ``usage``, in tokens that the engine read and sampled; a prompt counts once for all its choices."""
    firsts = _firsts(captures)
    prompt_tokens, completion_tokens = token_counts(captures)
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": completion_tokens,
        "total_tokens": prompt_tokens + completion_tokens,
        "prompt_tokens_details": {"cached_tokens": sum(capture.cached_tokens for capture in firsts)},
        "completion_tokens_details": {"reasoning_tokens": sum(capture.reasoning_tokens for capture in captures)},
    }
