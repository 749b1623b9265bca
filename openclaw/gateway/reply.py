"""One reply: generated at the engine, told to the client, recorded in the ledger.

Guarantees: generation begins at once, while the session is found and the next state that the request carries is
committed; no token is handed out before that commit, and one that fails ends the generation. Leaving a reply early, at
whatever point, stops the engine and records what there is. `Reply` owns everything from the prompt to the commit;
`Replies` owns the count of those under way and the background tasks that finish what a client has left.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

from openclaw.engine.client import GRAMMAR_PARAMETER, EngineClient
from openclaw.exceptions import EngineError, EngineRejectedError
from openclaw.gateway.capture import Capture, Step
from openclaw.gateway.errors import ApiError, from_engine, from_ledger
from openclaw.gateway.interleave import interleave
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.ledger.exceptions import LedgerError
from openclaw.ledger.records import Turn
from openclaw.messages.fingerprint import routing_key
from openclaw.sessions import Sessions, TurnContext

logger = logging.getLogger(__name__)


class Replies:
    """What every reply needs; ``under_way`` counts the replies that have begun and not ended."""

    def __init__(
        self, engine: EngineClient, sessions: Sessions, metrics: GatewayMetrics, clock: Callable[[], float]
    ) -> None:
        self.engine = engine
        self.sessions = sessions
        self.metrics = metrics
        self.clock = clock
        self.under_way = 0
        metrics.in_flight.set_function(lambda: self.under_way)
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run work to its end, whatever the client does."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def drain(self, timeout: float) -> None:
        """Wait for the work of clients that left, at most ``timeout`` seconds."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)


@dataclass(frozen=True)
class Opening:
    """What a reply begins with: its empty choices, and what finds its session (`Sessions.begin`)."""

    captures: list[Capture]
    find_session: Callable[[], Coroutine[Any, Any, TurnContext]]


class Reply:
    """One reply, for as long as the ``async with`` block lasts: entered, it begins; left early, it is given up.

    ``error`` is what it ended in, or None; ``recorded`` says whether the whole reply is in the ledger. Once it has begun,
    ``captures`` are its choices and ``context`` is its place in a session.
    """

    captures: list[Capture]
    context: TurnContext

    def __init__(self, replies: Replies, prepare: Callable[[], Awaitable[Opening]]) -> None:
        """Bind the reply; ``prepare`` renders its prompt."""
        self.error: ApiError | None = None
        self.recorded = False
        self._replies = replies
        self._prepare = prepare
        self._first: Step | None = None
        self._committing = False

    @property
    def capture(self) -> Capture:
        """The first choice."""
        return self.captures[0]

    @property
    def id(self) -> str:
        """The completion's id, which is the first choice's turn."""
        return self.capture.prompt.id

    async def __aenter__(self) -> Reply:
        """Begin; nobody waits yet."""
        self._opening = asyncio.ensure_future(self._open())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Give up what is not over; a client that left, or could not be sent to, did not get its reply."""
        if not self._opening.done():
            self._opening.cancel()
        if self._first is None:  # it failed, or is about to end: who left may not have seen how
            await asyncio.gather(self._opening, return_exceptions=True)
        if self._first is None:
            return
        self._give_up()
        if error is not None and not isinstance(error, ApiError):
            self._replies.sessions.undelivered(self.context, self.id)

    async def begun(self, within: float | None = None) -> bool:
        """Wait for the first tokens, at most ``within`` seconds; return whether they are there.

        Raises:
            ApiError: when there will be no reply; after an engine's error the session is as if the request had not come.
        """
        await asyncio.wait({self._opening}, timeout=within)
        if self._opening.done():
            self._opening.result()
        return self._first is not None

    async def _open(self) -> None:
        try:
            await self._begin(await self._prepare())
        except ApiError as error:
            self.error = error
            raise

    async def _begin(self, opening: Opening) -> None:
        """Wait for the first tokens and for what the request says about earlier turns."""
        self.captures = opening.captures
        sources = [self._read(capture) for capture in self.captures]
        self._steps = sources[0] if len(sources) == 1 else interleave(sources)  # one is read without a task in between
        self._replies.under_way += 1
        first = asyncio.ensure_future(anext(self._steps))
        context = self._replies.spawn(opening.find_session())
        try:
            await asyncio.wait({first, context}, return_when=asyncio.FIRST_EXCEPTION)
            for ready in (context, first):
                if ready.done():
                    ready.result()
            self.context, self._first = context.result(), first.result()
        except (EngineError, LedgerError) as error:
            self._committing = True
            await asyncio.shield(self._replies.spawn(self._end_start(first, context, aborted=False)))
            raise self._refusal(error) from error
        except BaseException:
            self._committing = True
            self._replies.spawn(self._end_start(first, context, aborted=True))
            raise
        metrics, prompt = self._replies.metrics, self.capture.prompt
        metrics.first_token.observe(self._replies.clock() - prompt.created_at)
        metrics.prompt_tokens.inc(len(prompt.ids))

    async def _end_start(self, first: asyncio.Task[Step], context: asyncio.Task[TurnContext], *, aborted: bool) -> None:
        """Stop both halves of a start: one failed, or, with ``aborted``, its client left, which is recorded."""
        first.cancel()
        _, found = await asyncio.gather(first, context, return_exceptions=True)
        await self._steps.aclose()
        if aborted and isinstance(found, TurnContext):
            self.context = found
            await self._commit(aborted=True)
            return
        self._replies.under_way -= 1
        if isinstance(found, TurnContext):
            self._replies.sessions.abandon(found)

    def _refusal(self, error: EngineError | LedgerError) -> ApiError:
        """Return what the client is told; the engine refuses a schema that it has no grammar for."""
        prompt = self.capture.prompt
        if isinstance(error, LedgerError):
            self._replies.metrics.ledger_failures.inc()
            logger.error("request %s is refused: %s", prompt.id, error)
            return from_ledger(error)
        answer = from_engine(error)
        if isinstance(error, EngineRejectedError) and GRAMMAR_PARAMETER in prompt.sampling:
            answer.param = "tools" if prompt.request.response_schema is None else "response_format"
        return answer

    async def steps(self) -> AsyncGenerator[Step, None]:
        """Yield what the client gets as it is generated; when it ends, the turns are recorded.

        Raises:
            ApiError: when the engine failed, or the turns could not be recorded.
        """
        assert self._first is not None, "wait until the reply has begun"
        try:
            yield self._first
            async for step in self._steps:
                yield step
            self._committing = True
            await asyncio.shield(self._replies.spawn(self._commit()))
        except EngineError as error:
            self._give_up()
            self.error = from_engine(error)
            raise self.error from error
        except BaseException as error:
            self._give_up()
            if isinstance(error, ApiError):
                self.error = error
            raise

    async def _read(self, capture: Capture) -> AsyncGenerator[Step, None]:
        """Yield one choice until it ends, at the engine or at a stop string."""
        prompt = capture.prompt
        # Of several choices none may have a name that another one's begins with: the engine aborts by beginnings.
        name = prompt.id if len(self.captures) == 1 else f"{prompt.id}.{capture.index:02d}"
        top = prompt.request.top_logprobs or 0
        key = routing_key(prompt.messages)
        async with aclosing(self._replies.engine.generate(name, prompt.ids, prompt.sampling, top, key)) as chunks:
            async for chunk in chunks:
                yield capture.add(chunk)
                if capture.finish_reason is not None:
                    return

    async def _commit(self, *, aborted: bool = False) -> None:
        """Record the turns, once; the first choice last, so that it is the one a client most likely goes on with."""
        self._committing = True
        replies, finished_at = self._replies, self._replies.clock()
        turns = [capture.turn(self.context, finished_at) for capture in self.captures]
        if aborted:
            turns = [replace(turn, finish_reason="abort") for turn in turns]
        try:
            await self._record(turns)
        except Exception as error:
            replies.metrics.ledger_failures.inc()
            logger.exception("turn %s could not be recorded", turns[0].id)
            if isinstance(error, LedgerError):
                raise from_ledger(error) from error
            raise ApiError(500, "the reply could not be recorded", code="internal_error") from error
        finally:
            replies.under_way -= 1
            replies.metrics.generated_tokens.inc(sum(len(turn.response_ids) for turn in turns))
            replies.metrics.malformed_tool_calls.inc(sum(capture.parser.malformed for capture in self.captures))
        self.recorded = not aborted
        for turn in turns:
            replies.metrics.turns.labels(kind=turn.kind, outcome=turn.finish_reason).inc()
            replies.metrics.request_seconds.observe(turn.finished_at - turn.created_at)
            if len({span.version for span in turn.weight_versions}) > 1:
                replies.metrics.mixed_versions.inc()

    async def _record(self, turns: list[Turn]) -> None:
        sessions = self._replies.sessions
        try:
            for turn in turns[:0:-1]:
                await sessions.record(self.context, turn)
        except BaseException:
            sessions.abandon(self.context)
            raise
        await sessions.finish(self.context, turns[0])

    def _give_up(self) -> None:
        """Stop the engine and record what there is, unless the turn is recorded or about to be."""
        if self._committing:
            return
        self._committing = True
        self._replies.spawn(self._leave())

    async def _leave(self) -> None:
        await self._steps.aclose()
        await self._commit(aborted=True)
