"""The life of a chat completion: prompt, session, tokens, turn.

Guarantees: a turn is in the ledger before the client is told that the reply is over; a client that goes away ends the
generation at the engine, and what was generated is recorded as an aborted turn. A reply that cannot be recorded is not
finished but ends in an error. `ChatService` owns the background tasks that finish what a client has left.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from openclaw.config import RuntimeConfig
from openclaw.engine_client import GRAMMAR_PARAMETER, EngineClient
from openclaw.exceptions import EngineError, EngineRejectedError
from openclaw.gateway.capture import Capture, Prompt, Step, usage
from openclaw.gateway.detokenize import Vocabulary
from openclaw.gateway.errors import ApiError, bad_request, from_engine, from_ledger
from openclaw.gateway.feedback import FeedbackDesk
from openclaw.gateway.grammar import reply_grammar
from openclaw.gateway.interleave import interleave
from openclaw.gateway.logprobs import LogprobEntries
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.parsers.formats import ReplyFormat
from openclaw.gateway.parsers.reply import ReplyParser
from openclaw.gateway.render import Renderer, RenderError
from openclaw.gateway.rollouts import RolloutDesk
from openclaw.gateway.sampling import plan_sampling
from openclaw.gateway.schema import ChatRequest
from openclaw.gateway.stream import DONE, ChunkWriter, choice, event, head
from openclaw.ledger.exceptions import LedgerError
from openclaw.ledger.records import Turn
from openclaw.sessions import MAX_SESSION_ID, Sessions, TurnContext

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0


class ChatService:
    """Answers chat completions; everything it needs is given to it."""

    def __init__(
        self,
        config: RuntimeConfig,
        *,
        renderer: Renderer,
        vocabulary: Vocabulary,
        reply_format: ReplyFormat,
        engine: EngineClient,
        sessions: Sessions,
        feedback: FeedbackDesk,
        rollouts: RolloutDesk,
        metrics: GatewayMetrics,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.config = config
        self.engine = engine
        self.sessions = sessions
        self.feedback = feedback
        self.rollouts = rollouts
        self.metrics = metrics
        self.clock = clock
        self._renderer = renderer
        self._vocabulary = vocabulary
        self._format = reply_format
        self._tasks: set[asyncio.Task[Any]] = set()

    async def start(self, request: ChatRequest, raw: Mapping[str, Any], headers: Mapping[str, str]) -> Reply:
        """Return the reply to a request, its first tokens generated.

        Args:
            request: as `parse_request` gave it.
            raw: the JSON it was read from.
            headers: of the HTTP request.

        Raises:
            ApiError: when there will be no reply.
        """
        stated_kind, done = read_headers(headers, request)
        prompt = await self._prompt(request, raw)
        try:
            context = await self.sessions.begin(
                headers, prompt.messages, body_session_id=request.session_id, stated_kind=stated_kind, done=done
            )
        except LedgerError as error:
            self.metrics.ledger_failures.inc()
            logger.error("request %s is refused: %s", prompt.id, error)
            raise from_ledger(error) from error
        reply = Reply(self, [self._capture(prompt, index) for index in range(request.choices)], context)
        await reply.start()
        return reply

    def _capture(self, prompt: Prompt, index: int) -> Capture:
        """Return the empty choice number ``index`` of a request."""
        request = prompt.request
        tools = self._format.tools if request.offers_tools else None
        parser = ReplyParser(
            reasoning=self._format.reasoning,
            tools=tools.parser(request.tool_schemas) if tools else None,
            inside_reasoning=prompt.inside_reasoning,
            stops=request.stops,
        )
        entries = LogprobEntries(self._vocabulary, request.top_logprobs or 0) if request.logprobs else None
        return Capture(prompt, self._vocabulary.detokenizer(), parser, index, entries)

    async def whole(self, reply: Reply) -> dict[str, Any]:
        """Return a reply as one JSON object."""
        try:
            async with aclosing(reply.steps()) as steps:
                async for _ in steps:
                    continue
        except EngineError as error:
            raise from_engine(error) from error
        choices = [
            choice(
                capture.index,
                capture.builder.message(),
                capture.finish_reason or "stop",
                None if capture.entries is None else capture.content_logprobs,
            )
            for capture in reply.captures
        ]
        return {**self._head(reply), "choices": choices, "usage": usage(reply.captures)}

    async def events(self, reply: Reply) -> AsyncGenerator[bytes, None]:
        """Yield a reply as server-sent events."""
        request = reply.capture.prompt.request
        options = request.stream_options
        writer = ChunkWriter(
            self._head(reply), logprobs=bool(request.logprobs), include_usage=bool(options and options.include_usage)
        )
        try:
            async with aclosing(reply.steps()) as steps:
                async for step in steps:
                    if data := writer.step(step):
                        yield data
        except (EngineError, ApiError) as error:
            reply.error = from_engine(error) if isinstance(error, EngineError) else error
            yield event(reply.error.body())
            return
        ends = b"".join(writer.finish(capture.index, capture.finish_reason or "stop") for capture in reply.captures)
        yield ends + writer.usage(usage(reply.captures)) + DONE

    def _head(self, reply: Reply) -> dict[str, Any]:
        prompt = reply.capture.prompt
        return head(prompt.id, self.config.model_name, prompt.created_at, reply.capture.weight_version)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run work that must be carried through whatever the client does."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def close(self) -> None:
        """Carry the work of clients that left through, then let go of the engine and the ledger's thread."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        await self.engine.close()
        await self.sessions.close()
        self._renderer.close()

    async def _prompt(self, request: ChatRequest, raw: Mapping[str, Any]) -> Prompt:
        """Render a request and decide how it is sampled."""
        created_at = self.clock()
        tools = list(raw["tools"]) if request.offers_tools else None
        try:
            ids, thought = await self._renderer.prepare(
                raw["messages"], tools, request.template_kwargs, self._format.reasoning
            )
        except RenderError as error:
            raise bad_request(str(error), param="messages") from error
        room = self.config.context_length - len(ids)
        if room <= 0:
            raise bad_request(
                f"This model's maximum context length is {self.config.context_length} tokens. However, your messages "
                f"resulted in {len(ids)} tokens. Please reduce the length of the messages.",
                param="messages",
                code="context_length_exceeded",
            )
        grammar = reply_grammar(request, self._format.tools, self._format.reasoning, thought)
        plan = plan_sampling(request, self.config, room, grammar)
        return Prompt(
            id=f"chatcmpl-{uuid.uuid4().hex}",
            request=request,
            messages=list(raw["messages"]),
            tools=tools,
            ids=list(ids),
            inside_reasoning=thought == "open",
            sampling=plan.parameters,
            temperature=plan.temperature,
            top_p=plan.top_p,
            created_at=created_at,
            excluded=plan.excluded,
        )


class Reply:
    """One reply under way; `start`, then `steps` to its end or closed early, then `give_up` in any case.

    ``captures`` are its choices; ``error`` is what a stream ended in, or None; ``recorded`` says whether the whole reply
    is in the ledger.
    """

    def __init__(self, service: ChatService, captures: list[Capture], context: TurnContext) -> None:
        self.captures = captures
        self.context = context
        self.error: ApiError | None = None
        self.recorded = False
        self._service = service
        self._first: Step | None = None
        self._committing = False
        self._steps = interleave([self._read(capture) for capture in captures])
        service.metrics.in_flight.inc()

    @property
    def capture(self) -> Capture:
        """The first choice."""
        return self.captures[0]

    async def start(self) -> None:
        """Wait for the first tokens.

        Raises:
            ApiError: when the engine gives none; the session is as if the request had not come.
        """
        try:
            self._first = await anext(self._steps)
        except EngineError as error:
            self._service.metrics.in_flight.dec()
            self._service.sessions.abandon(self.context)
            raise self._refusal(error) from error
        except BaseException:
            self.give_up()
            raise
        metrics, prompt = self._service.metrics, self.capture.prompt
        metrics.first_token.observe(self._service.clock() - prompt.created_at)
        metrics.prompt_tokens.inc(len(prompt.ids))

    def _refusal(self, error: EngineError) -> ApiError:
        """Return what the client is told; the engine refuses a schema that it has no grammar for."""
        prompt = self.capture.prompt
        answer = from_engine(error)
        if isinstance(error, EngineRejectedError) and GRAMMAR_PARAMETER in prompt.sampling:
            answer.param = "tools" if prompt.request.response_schema is None else "response_format"
        return answer

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Yield what the client gets as it is generated; when it ends, the turns are recorded."""
        assert self._first is not None, "start the reply first"
        try:
            yield self._first
            async for step in self._steps:
                yield step
            self._committing = True
            await asyncio.shield(self._service.spawn(self._commit()))
        except BaseException:
            self.give_up()
            raise

    async def _read(self, capture: Capture) -> AsyncGenerator[Step, None]:
        """Yield one choice until it ends, at the engine or at a stop string."""
        prompt = capture.prompt
        # Of several choices none may have a name that another one's begins with: the engine aborts by beginnings.
        name = prompt.id if len(self.captures) == 1 else f"{prompt.id}.{capture.index:02d}"
        top = prompt.request.top_logprobs or 0
        async with aclosing(self._service.engine.generate(name, prompt.ids, prompt.sampling, top)) as chunks:
            async for chunk in chunks:
                yield capture.add(chunk)
                if capture.finish_reason is not None:
                    return

    async def _commit(self, *, aborted: bool = False) -> None:
        """Record the turns, once; the first choice last, so that it is the one a client most likely goes on with."""
        self._committing = True
        service, finished_at = self._service, self._service.clock()
        turns = [capture.turn(self.context, finished_at) for capture in self.captures]
        if aborted:
            turns = [replace(turn, finish_reason="abort") for turn in turns]
        try:
            await self._record(turns)
        except Exception as error:
            service.metrics.ledger_failures.inc()
            logger.exception("turn %s could not be recorded", turns[0].id)
            if isinstance(error, LedgerError):
                raise from_ledger(error) from error
            raise ApiError(500, "the reply could not be recorded", code="internal_error") from error
        finally:
            service.metrics.in_flight.dec()
            service.metrics.generated_tokens.inc(sum(len(turn.response_ids) for turn in turns))
            service.metrics.malformed_tool_calls.inc(sum(capture.parser.malformed for capture in self.captures))
        self.recorded = not aborted
        for turn in turns:
            service.metrics.turns.labels(kind=turn.kind, outcome=turn.finish_reason).inc()
            service.metrics.request_seconds.observe(turn.finished_at - turn.created_at)
            if len({span.version for span in turn.weight_versions}) > 1:
                service.metrics.mixed_versions.inc()

    async def _record(self, turns: list[Turn]) -> None:
        sessions = self._service.sessions
        try:
            for turn in turns[:0:-1]:
                await sessions.record(self.context, turn)
        except BaseException:
            sessions.abandon(self.context)
            raise
        await sessions.finish(self.context, turns[0])

    def give_up(self) -> None:
        """Stop the engine and record what there is, unless the turn is recorded or about to be."""
        if self._committing:
            return
        self._committing = True
        self._service.spawn(self._abort())

    async def _abort(self) -> None:
        await self._steps.aclose()
        await self._commit(aborted=True)


def read_headers(headers: Mapping[str, str], request: ChatRequest) -> tuple[Any, bool]:
    """Return the turn type that the client states, or None, and whether the session ends with this turn.

    Raises:
        ApiError: 400 for a header that cannot be read.
    """
    kind = headers.get("x-turn-type", "").strip().lower() or request.turn_type
    if kind not in (None, "main", "side"):
        raise bad_request(f"X-Turn-Type: {kind!r}; send main or side", param="X-Turn-Type")
    if any(
        len(headers.get(name, "")) > MAX_SESSION_ID for name in ("x-session-id", "session_id", "x-session-affinity")
    ):
        raise bad_request(f"X-Session-Id: send at most {MAX_SESSION_ID} characters", param="X-Session-Id")
    done = headers.get("x-session-done", "").strip().lower()
    return kind, done in ("1", "true", "yes") or bool(request.session_done)
