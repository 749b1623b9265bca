"""The endpoints at which clients ask for replies: read the request, prepare its prompt, send the reply, count the outcome.

Each is a `Completions` for one dialect (`openclaw.gateway.dialects`). Guarantees: every request is counted with its status. A
streamed request is counted at its end, with the status of its error if it had one. `Completions` is an ASGI application of its
own, because the framework's routing, validation and error handling cost more than the rest of a short request. `ChatService`
builds the gateway's parts from a configuration and owns them; `openclaw.gateway.reply` carries each reply from its prompt to
the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, aclosing, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from fastapi import Request, Response
from prometheus_client import CollectorRegistry
from starlette.types import ASGIApp, Receive, Scope, Send

from chat_codec.detokenize import MARKERS, Vocabulary
from chat_codec.formats import reply_format
from chat_codec.renderer import Renderer, RenderError, Thought
from chat_codec.reply_parser import ReplyParser
from groundwork.chat_messages import Message
from groundwork.start_timeline import GATEWAY, Step, mark
from openclaw.config.bounds import LARGE_BODY, SESSION_ID
from openclaw.config.runtime import RuntimeConfig
from openclaw.credit.episodes import EpisodeRules
from openclaw.engine.canary import ShareReader
from openclaw.engine.client import EngineClient
from openclaw.gateway.auth import Client
from openclaw.gateway.capture import Capture, LogprobEntries, Prompt
from openclaw.gateway.commands import Before, CommandDesk
from openclaw.gateway.dialects import CHAT, Dialect
from openclaw.gateway.dialects.dialect import Form, Question, unslim
from openclaw.gateway.dialects.text_completions import check_prompt_ids
from openclaw.gateway.earlier import EarlierVersions, of_version, unknown, version_in
from openclaw.gateway.episodes import EpisodeDesk
from openclaw.gateway.errors import (
    CLIENT_GONE,
    ApiError,
    ClientGoneError,
    answer,
    bad_request,
    defect,
    stopping,
    too_long,
)
from openclaw.gateway.guard import RequestHeaders, client_of, note_reply
from openclaw.gateway.large_bodies import LargeBodies
from openclaw.gateway.lessons import LessonDesk, wished
from openclaw.gateway.limits import Admission, RateLimits, take_body
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.pictures import Picture, PictureReader, engine_pictures
from openclaw.gateway.reply import Opening, OwnAnswer, Replies, Reply
from openclaw.gateway.sampling import NO_SAMPLING, plan_sampling, reply_grammar
from openclaw.gateway.schema import ChatRequest, prompt_characters
from openclaw.gateway.served import Served, ServedReplies
from openclaw.gateway.shared import Shared
from openclaw.gateway.stream import Connected, EventStream, json_response
from openclaw.gateway.turns import TurnDesk
from openclaw.ledger.records import PlainPart, SeenPicture, Turn, TurnKind
from openclaw.ledger.store import Ledger
from openclaw.lessons.lesson import Lesson, as_hint
from openclaw.messages.classify import Asked, side_kind
from openclaw.messages.commands import Heard, hear
from openclaw.messages.fingerprint import History
from openclaw.messages.hints import append_hint
from openclaw.owners import COMMAND_ANSWER, TEXT_COMPLETION, episode_of, new_completion_id, owner_of, tool_call_id
from openclaw.sessions import SESSION_HEADERS, Sessions

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 10.0
Begin = Callable[[Question, Mapping[str, str], Client], Reply]
"""Makes the reply to a question with a request's headers; entering it starts it."""
LookUp = Callable[[Question, Client], Awaitable[Question]]
"""Completes a question that names what the ledger has."""
LARGE_PROMPT = 1 << 17
"""Characters of a prompt that is tokenised beside the others, not before them: a quarter of a second's work."""


@dataclass(frozen=True)
class Conversation:
    """What a request says, and what we know of it before its prompt is written.

    Attributes:
        messages: with named pictures.
        tools: that the model may call, None if it may not call any.
        pictures: of the messages, in order.
        served: our replies among the messages.
        history: digests of the messages, None if none is a reply.
        kind: ``main`` or ``side``.
        done: whether the session ends with this turn.
        lessons: that the prompt is to carry.
    """

    messages: list[Message]
    tools: list[dict[str, Any]] | None
    pictures: Sequence[Picture]
    served: Served
    history: History | None
    kind: TurnKind
    done: bool
    lessons: Sequence[Lesson]


@dataclass(frozen=True)
class Written:
    """A prompt.

    Attributes:
        template_ids: as the chat template writes it.
        thought: whether it ends inside a thought.
        ids: with each picture's placeholder repeated.
        seen: its pictures.
        served: our replies in it, counted.
        plain: finds out how the prompt without lessons differs; None if this one has none.
        lessons: what became of the lessons, for the metrics; None without any.
    """

    template_ids: list[int]
    thought: Thought
    ids: list[int]
    seen: tuple[SeenPicture, ...]
    served: Served
    plain: Callable[[], Awaitable[PlainPart]] | None = None
    lessons: str | None = None


class ChatService:
    """Answers chat completions; its attributes are the parts that the other routes use."""

    def __init__(
        self,
        config: RuntimeConfig,
        tokenizer: Any,
        ledger: Ledger,
        registry: CollectorRegistry,
        *,
        renderer: Renderer | None = None,
        processor: Any | None = None,
        on_pending: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.time,
        topk: int = 0,
        trains_rewards: bool = True,
        shared: Shared | None = None,
        earlier: EarlierVersions | None = None,
    ) -> None:
        """Build the gateway's parts.

        Args:
            config: with ``policy_url``.
            tokenizer: the policy's.
            ledger: records the turns.
            registry: takes the metrics.
            renderer: of ``tokenizer``, if the runtime already has one.
            processor: of a policy that sees pictures; None: it sees none.
            on_pending: called when a turn gets its next state or a session ends.
            clock: seconds since the epoch.
            topk: how many of the policy's most likely tokens a turn keeps at each position, for the method.
            trains_rewards: whether the method learns from rewards, so that episodes give samples.
            shared: what the process that leads has, in one of its workers, which only replies: without ``turns`` and ``episodes``.
            earlier: earlier versions of the weights, which this service closes; None: there are none, or ``shared`` has them.
        """
        config.require("policy_url")
        self.config = config
        self.ledger = ledger
        self.clock = clock
        self.metrics = metrics = GatewayMetrics(registry)
        self._topk = topk
        self._model_name = config.model_name
        self._format = form = reply_format(
            getattr(tokenizer, "chat_template", None) or "",
            reasoning_parser=config.reasoning_parser,
            tool_call_parser=config.tool_call_parser,
            reasoning_tags=config.reasoning_tags,
        )
        tags = (form.reasoning.open, form.reasoning.close) if form.reasoning else ()
        self._vocabulary = Vocabulary(tokenizer, MARKERS | set(tags))
        self._renderer, self._large_renderer = renderer or Renderer(tokenizer), Renderer(tokenizer)
        self._pictures = PictureReader(processor)
        self._served = ServedReplies(ledger.turns, form, self._pictures.placeholders, alone=shared is None)
        self.engine = EngineClient(
            config.policy_url or "",
            wait_seconds=config.engine_wait_seconds,
            on_retry=lambda kind: metrics.engine_retries.labels(kind=kind).inc(),
            on_death=lambda outcome: metrics.engine_deaths.labels(outcome=outcome).inc(),
            canary=ShareReader(config.run_dir) if config.run_dir else None,
            per_person=config.adapter_per_person,
            state=shared.engine if shared else None,
        )
        self.lessons = LessonDesk(config, ledger, lambda text: len(self._renderer.encode_text(text)), metrics)
        self.large_bodies = LargeBodies(config.context_length)
        self._answered = False
        self.earlier = earlier if shared is None else shared.earlier
        self.on_forgotten: Callable[[str], None] = lambda session_id: None
        """Called with each session that `forget` forgets."""
        if shared is not None:
            self.sessions, self.limits, self.commands = shared.sessions, shared.limits, shared.commands
            self.replies = Replies(
                *(self.engine, self.sessions, metrics, clock, self.recorded, shared.count),
                earlier=self.earlier,
                ends=self._vocabulary.ends,
            )
            return
        self.sessions = Sessions(
            ledger,
            idle_seconds=config.session_idle_seconds,
            max_sessions=config.max_sessions,
            clock=clock,
            regenerated=config.regenerated,
            on_event=lambda name: metrics.session_events.labels(event=name).inc(),
            on_pending=on_pending,
            on_forgotten=self.forget,
        )
        self.replies = Replies(
            *(self.engine, self.sessions, metrics, clock, self.recorded), earlier=earlier, ends=self._vocabulary.ends
        )
        rules = EpisodeRules(
            config.temperature, config.train_token_limit, trains_rewards, config.prm_step_coef, config.baseline
        )
        self.episodes = EpisodeDesk(ledger, self.sessions, metrics, rules, self.replies.quiet, clock=clock)
        self.turns = TurnDesk(
            ledger,
            metrics,
            clock=clock,
            on_pending=on_pending,
            serves_rollouts=config.serve_rollouts,
            model_path=config.tokenizer,
        )
        self.limits = RateLimits.of(config)
        self.commands = CommandDesk(self.sessions, self.turns, self.lessons, self.limits)

    def recorded(self, turn: Turn) -> None:
        """Remember a turn as the ledger has it; the first whole one ends the timeline of the start."""
        self._served.remember(turn)
        if not self._answered and turn.finish_reason != "abort":
            self._answered = True
            mark(self.config.run_dir, GATEWAY, Step.ANSWERED)

    def forget(self, session_id: str) -> None:
        """Drop what memory and the engine's cache have of a forgotten session."""
        self._renderer.forget()
        self._large_renderer.forget()
        self._served.forget()
        self._pictures.forget()
        self.lessons.forget()
        self.engine.cache_keys.renew(owner_of(session_id))
        self.on_forgotten(session_id)

    def reply(self, question: Question, headers: Mapping[str, str], client: Client) -> Reply:
        """Return the reply to a conversation, or the gateway's own answer to a command; entering it starts it.

        Args:
            question: what the request asks.
            headers: of the HTTP request.
            client: who asks. The agent of an episode gets what the policy samples by itself, whatever temperature it asks
                for, because no other reply can be trained.
        """
        owner = client.owner
        if episode_of(owner) is not None:
            sampling = {"temperature": None, "top_p": None, "seed": None}
            question = replace(question, request=question.request.model_copy(update=sampling))
        request = question.request

        async def prepare() -> Opening | OwnAnswer:
            asked = question
            if self._takes_commands(client):
                heard = hear(question.raw["messages"])
                asked = replace(question, raw={**question.raw, "messages": heard.messages})
                stated, _ = read_headers(headers, request)
                if heard.command is not None and (stated or kind_of(heard.messages, request, headers)) == "main":
                    return self._own_answer(heard, question, headers, client)
            version = await self._named_version(request, client)
            conversation = await self._conversation(asked, headers, client)
            prompt = await self._prompt(request, conversation)
            prompt = prompt if version is None else of_version(prompt, version)
            begin = partial(
                self.sessions.begin,
                headers,
                prompt.messages,
                owner=owner,
                body_session_id=request.session_id,
                stated_kind=conversation.kind,
                done=conversation.done,
                history=conversation.history,
                tools=request.offers_tools,
                structured=request.response_schema is not None,
                streamed=bool(request.stream),
                beside=version is not None,
            )
            return Opening([self._capture(prompt, index) for index in range(request.choices)], begin)

        return Reply(self.replies, prepare, client, question.form)

    async def _named_version(self, request: ChatRequest, client: Client) -> str | None:
        """Return the version of the weights that a request names, or None.

        Raises:
            ApiError: 404 for one that is not kept or not the client's; 400 for the agent of an episode, whose turns have to be trained.
        """
        version = version_in(request.model, self._model_name)
        if version is None:
            return None
        if episode_of(client.owner) is not None:
            raise bad_request("an episode is answered by the version that serves; leave out @VERSION", param="model")
        kept = [] if self.earlier is None else await self.earlier.kept(client.owner)
        if version not in kept:
            raise unknown(version, kept)
        return version

    def _own_answer(self, heard: Heard, question: Question, headers: Mapping[str, str], client: Client) -> OwnAnswer:
        """Return the answer to a command; where a client names the reply before it, it has that one's id, so that it may go on."""
        request = question.request
        _, done = read_headers(headers, request)

        async def text() -> str:
            messages, _ = await self._pictures.read(heard.before, client.owner)
            before = Before(headers, messages, request.session_id, done)
            return await self.commands.answer(heard.command or "", before, client)

        prompt = Prompt(
            id=question.form.continues() or new_completion_id(COMMAND_ANSWER),
            model=self._model_name,
            request=request,
            messages=list(question.raw["messages"]),
            tools=None,
            ids=[],
            inside_reasoning=False,
            plan=NO_SAMPLING,
            created_at=self.clock(),
        )
        return OwnAnswer(self._captured(prompt, 0, ReplyParser()), text)

    def text_reply(self, question: Question, headers: Mapping[str, str], client: Client) -> Reply:
        """Return the reply to a text completion; entering it starts it.

        Args:
            question: what the request asks, with prompts.
            headers: of the HTTP request.
            client: who asks.
        """
        asked, owner = question.request, client.owner

        async def prepare() -> Opening:
            kind, done = read_headers(headers, asked)
            if kind == "main":
                raise bad_request(
                    "X-Turn-Type: a text completion is always a side turn; leave the header out, or use POST "
                    f"{CHAT.path}",
                    param="X-Turn-Type",
                )
            version = await self._named_version(asked, client)
            prompts = [await self._text_prompt(asked, prompt) for prompt in question.prompts]
            prompts = prompts if version is None else [of_version(prompt, version) for prompt in prompts]
            prompts = [replace(prompt, id=prompts[0].id) for prompt in prompts]
            captures = [
                self._raw_capture(prompt, number * asked.choices + index)
                for number, prompt in enumerate(prompts)
                for index in range(asked.choices)
            ]
            begin = partial(
                self.sessions.begin,
                headers,
                prompts[0].messages,
                owner=owner,
                body_session_id=asked.session_id,
                stated_kind="side",
                done=done,
            )
            return Opening(captures, begin)

        return Reply(self.replies, prepare, client, question.form)

    async def _text_prompt(self, request: ChatRequest, given: str | Sequence[int]) -> Prompt:
        """Return the prompt of a text or of ids, and plan its sampling."""
        created_at = self.clock()
        renderer = self._large_renderer if len(given) > LARGE_PROMPT else self._renderer
        if isinstance(given, str):
            ids, text = await renderer.encode_prompt(given), given
        else:
            check_prompt_ids(given, self._vocabulary, self._pictures.placeholders)
            ids, text = list(given), await renderer.decode_prompt(given)
        check_prompt_ids(ids, self._vocabulary, self._pictures.placeholders)
        plan = plan_sampling(request, self.config, self._room(ids, "prompt"), vocabulary=self._vocabulary)
        return Prompt(
            id=new_completion_id(TEXT_COMPLETION),
            model=self._model_name,
            request=request,
            messages=[{"role": "user", "content": text}],
            tools=None,
            ids=ids,
            inside_reasoning=False,
            plan=plan,
            created_at=created_at,
        )

    def _room(self, ids: Sequence[int], param: str) -> int:
        """Return how many tokens the context leaves for a reply.

        Raises:
            ApiError: 400 ``context_length_exceeded`` if it leaves none; ``param`` has the prompt.
        """
        room = self.config.context_length - len(ids)
        if room <= 0:
            raise too_long(
                f"This model's maximum context length is {self.config.context_length} tokens. However, your {param} "
                f"resulted in {len(ids)} tokens. Please reduce the length of the {param}.",
                param=param,
                size=len(ids),
                most=self.config.context_length,
            )
        return room

    def _raw_capture(self, prompt: Prompt, index: int) -> Capture:
        """Return choice number ``index`` of a text completion, still empty: all that the model writes is its text."""
        return self._captured(prompt, index, ReplyParser(stops=prompt.request.stops))

    def _capture(self, prompt: Prompt, index: int) -> Capture:
        """Return choice number ``index`` of a request, still empty."""
        request = prompt.request
        tools = self._format.tools if request.offers_tools else None
        parser = ReplyParser(
            reasoning=self._format.reasoning,
            tools=tools.parser(request.tool_schemas, partial(tool_call_id, prompt.id, index)) if tools else None,
            inside_reasoning=prompt.inside_reasoning,
            stops=request.stops,
        )
        return self._captured(prompt, index, parser)

    def _captured(self, prompt: Prompt, index: int, parser: ReplyParser) -> Capture:
        request = prompt.request
        vocabulary, unsaid = self._vocabulary, frozenset(request.stop_token_ids or ())
        silent = vocabulary.silent
        if request.shows_special_tokens:
            silent, unsaid = frozenset[int](), unsaid | vocabulary.silent
        entries = LogprobEntries(vocabulary, request.top_logprobs or 0, silent) if request.logprobs else None
        return Capture(prompt, vocabulary.detokenizer(silent), parser, index, entries, unsaid)

    async def close(self) -> None:
        """Finish the work of disconnected clients, then release the engine and the ledger's thread."""
        await self.replies.drain(CLOSE_SECONDS)
        await self.large_bodies.close()
        await self.engine.close()
        if self.earlier is not None:
            await self.earlier.close()
        await self.sessions.close()
        self._renderer.close()
        self._large_renderer.close()
        self._pictures.close()

    def _takes_commands(self, client: Client) -> bool:
        return self.config.commands and episode_of(client.owner) is None

    async def question(self, dialect: Dialect, body: bytes, admission: Admission | None = None) -> Question:
        """Return what a body asks; a large one is read in the worker, and only then waits for ``admission``.

        Raises:
            ApiError: what `Dialect.read` and `LargeBodies.slim` raise.
        """
        large = len(body) > LARGE_BODY.most
        if large:
            body = await self.large_bodies.slim(body, dialect)
        if admission is not None:
            await admission.enter()
        return unslim(dialect, body) if large else dialect.read(body, self.config.context_length)

    async def count_tokens(self, question: Question, headers: Mapping[str, str], client: Client) -> int:
        """Return the tokens of the prompt that a reply would have, also of one that the context cannot hold.

        Raises:
            ApiError: 400 for messages that cannot be rendered, or an invalid header.
        """
        if self._takes_commands(client):
            question = replace(question, raw={**question.raw, "messages": hear(question.raw["messages"]).messages})
        try:
            conversation = await self._conversation(question, headers, client)
            return len((await self._written(question.request, conversation)).ids)
        except ApiError as error:
            raise question.form.named(error) from error.__cause__

    async def _conversation(self, question: Question, headers: Mapping[str, str], client: Client) -> Conversation:
        """Return a request's messages with named pictures, and what we know of it."""
        request, owner = question.request, client.owner
        stated, done = read_headers(headers, request)
        messages, pictures = await self._pictures.read(question.raw["messages"], owner)
        served, history = await self._served.find(messages, request.tool_schemas, owner)
        kind = stated or kind_of(messages, request, headers)
        lessons = await self.lessons.of_request(client, kind, wished(headers))
        tools = list(question.raw["tools"]) if request.offers_tools else None
        return Conversation(messages, tools, pictures, served, history, kind, done, lessons)

    async def _prompt(self, request: ChatRequest, conversation: Conversation) -> Prompt:
        """Render a request and plan its sampling."""
        created_at = self.clock()
        written = await self._written(request, conversation)
        self.metrics.replayed_replies.labels(ids="sampled").inc(written.served.sampled)
        self.metrics.replayed_replies.labels(ids="rendered").inc(written.served.rendered)
        room = self._room(written.ids, "messages")
        if written.lessons is not None:
            self.metrics.lessons.labels(outcome=written.lessons).inc()
        grammar = reply_grammar(request, self._format.tools, self._format.reasoning, written.thought)
        plan = plan_sampling(request, self.config, room, grammar, vocabulary=self._vocabulary)
        return Prompt(
            id=new_completion_id(),
            model=self._model_name,
            request=request,
            messages=conversation.messages,
            tools=conversation.tools,
            ids=written.ids,
            pictures=written.seen,
            for_engine=engine_pictures(written.template_ids, written.seen),
            placeholders=self._pictures.placeholders,
            inside_reasoning=written.thought == "open",
            plan=plan,
            created_at=created_at,
            topk=self._topk if plan.excluded is None else 0,
            plain=written.plain,
            lessons=tuple((lesson.id, lesson.text) for lesson in conversation.lessons) if written.plain else (),
        )

    async def _written(self, request: ChatRequest, conversation: Conversation) -> Written:
        """Return the prompt of a request, with its lessons if it has any and they fit.

        The prompt without them is left for later, unless it has to tell whether they fit: no first token waits for it.

        Raises:
            ApiError: 400 for messages that the chat template refuses.
        """

        async def plain() -> Written:
            try:
                return await self._rendered(request, conversation, conversation.messages)
            except RenderError as error:
                raise bad_request(str(error), param="messages") from error

        written: Written | None = None
        longer = await self._with_lessons(request, conversation) if conversation.lessons else None
        if longer is None:
            return await plain()
        context, wanted, fewest = self.config.context_length, request.requested_tokens, request.min_tokens or 0
        left = context - len(longer.ids)
        if left < max(fewest, wanted or (context + 1) // 2):
            written = await plain()
            room = context - len(written.ids)
            if room <= 0:
                return written
            if left < max(fewest, wanted if wanted and wanted < room else (room + 1) // 2):
                return replace(written, lessons="overflow")
        ids = longer.ids

        async def difference() -> PlainPart:
            return PlainPart.between(ids, (written or await plain()).ids)

        return replace(longer, plain=difference, lessons="served")

    async def _rendered(self, request: ChatRequest, conversation: Conversation, messages: Sequence[Message]) -> Written:
        """Return the prompt of a conversation with these messages.

        Raises:
            RenderError: when the template refuses the messages.
        """
        large = prompt_characters(messages, conversation.tools or ()) > LARGE_PROMPT
        renderer, served = self._large_renderer if large else self._renderer, replace(conversation.served)
        template_ids, thought = await renderer.prepare(
            messages, conversation.tools, request.template_kwargs, self._format.reasoning, served
        )
        ids, seen = self._pictures.expanded(template_ids, conversation.pictures)
        return Written(template_ids, thought, ids, seen, served)

    async def _with_lessons(self, request: ChatRequest, conversation: Conversation) -> Written | None:
        """Return the prompt with lessons at the end of the last user message, or None if it has no place for them."""
        try:
            hinted = append_hint(list(conversation.messages), as_hint(conversation.lessons))
            return await self._rendered(request, conversation, hinted)
        except ValueError:
            self.metrics.lessons.labels(outcome="refused").inc()
            logger.warning("a request is served without lessons: the chat template has no place for them")
            return None


def kind_of(messages: Sequence[Message], request: ChatRequest, headers: Mapping[str, str]) -> TurnKind:
    """Return whether a request that does not say so is the user's turn or a client's own."""
    return "side" if side_kind(messages, Asked(bool(request.tools), headers)) else "main"


def read_headers(headers: Mapping[str, str], request: ChatRequest) -> tuple[Any, bool]:
    """Return the client's turn type or None, and whether the session ends with this turn.

    Raises:
        ApiError: 400 for an invalid header.
    """
    kind = headers.get("x-turn-type", "").strip().lower() or request.turn_type
    if kind not in (None, "main", "side"):
        raise bad_request(f"X-Turn-Type: {kind!r} is unknown; send main or side", param="X-Turn-Type")
    if any(len(headers.get(name, "")) > SESSION_ID.most for name in SESSION_HEADERS):
        raise bad_request(
            f"X-Session-Id: send at most {SESSION_ID.most} characters", param="X-Session-Id", bound=SESSION_ID
        )
    done = headers.get("x-session-done", "").strip().lower()
    return kind, done in ("1", "true", "yes") or bool(request.session_done)


class Completions:
    """The endpoint of a dialect, as an ASGI application."""

    def __init__(
        self,
        service: ChatService,
        dialect: Dialect,
        begin: Begin,
        admission: Admission,
        look_up: LookUp | None = None,
    ) -> None:
        """Create an endpoint for ``service``, whose replies ``begin`` makes; endpoints share the ``admission``.

        ``look_up`` is for a dialect whose bodies may name what the ledger has.
        """
        self._look_up = look_up
        self.path = dialect.path
        self._service = service
        self._dialect = dialect
        self._begin = begin
        self._admission = admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a prompt, streamed or whole."""
        scope["route"] = self
        await _Answered(self._service.metrics, self._dialect.form, self._answer)(scope, receive, send)

    async def _answer(self, request: Request, until_sent: AsyncExitStack) -> Response:
        """Return the response; a streamed reply lives until ``until_sent`` exits."""
        client = client_of(request.scope)
        question = await self._service.question(self._dialect, take_body(request.scope), self._admission)
        if self._look_up is not None:
            question = await self._look_up(question, client)
        reply = self._begin(question, RequestHeaders(request.scope), client)
        if question.request.stream:
            return await _stream(self._service, request, await until_sent.enter_async_context(reply))
        async with reply:
            async with Connected(request.receive):
                await reply.begun()
            note_reply(request.scope, reply)
            async with Connected(request.receive):
                result = await reply.whole()
        return json_response(result, reply.headers)


class _Answered:
    """The answer that ``work`` makes of a request, or its error, as an ASGI application; counts either.

    What ``work`` puts on the stack that it is given lives until the answer is sent.
    """

    def __init__(
        self,
        metrics: GatewayMetrics,
        form: Callable[[], Form],
        work: Callable[[Request, AsyncExitStack], Awaitable[Response]],
        headers: Mapping[str, str] | None = None,
    ) -> None:
        self._metrics = metrics
        self._form = form
        self._work = work
        self._headers = headers or {}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        metrics = self._metrics
        async with AsyncExitStack() as until_sent:
            until_sent.enter_context(suppress(ClientGoneError))
            try:
                response = await self._work(Request(scope, receive), until_sent)
            except ApiError as error:
                count(metrics, error.status)
                response = told(self._form(), error) if error.streamed else answer(error, scope)
            except ClientGoneError:
                count(metrics, CLIENT_GONE)
                response = Response(status_code=CLIENT_GONE)
            except asyncio.CancelledError:  # the time that the server gives its last requests is over
                count(metrics, 503)
                response = answer(stopping(), scope)
            except Exception:
                count(metrics, 500)
                await answer(defect(), scope)(scope, receive, send)
                raise
            else:
                if not isinstance(response, EventStream):
                    count(metrics, 200)
            response.headers.update(self._headers)
            await response(scope, receive, send)


def streamed(service: ChatService, question: Question, client: Client, headers: Mapping[str, str]) -> ASGIApp:
    """Return the answer of a route that streams the reply to its own ``question``; ``headers``: of the answer."""

    async def work(request: Request, until_sent: AsyncExitStack) -> Response:
        reply = await until_sent.enter_async_context(service.reply(question, {}, client))
        return await _stream(service, request, reply)

    return _Answered(service.metrics, lambda: question.form, work, headers)


def told(form: Form, error: ApiError) -> Response:
    """Return a stream that only tells an error."""
    return Response(form.failure(error), media_type=EventStream.media_type)


async def _stream(service: ChatService, request: Request, reply: Reply) -> EventStream:
    """Return the stream of a reply; before its first token the client gets heartbeats."""

    async def late() -> AsyncGenerator[bytes, None]:
        if reply.error is None:
            yield reply.heartbeat()
        try:
            await reply.begun()
        except ApiError as error:
            yield reply.failure(error)
            return
        note_reply(request.scope, reply)
        async with aclosing(reply.events()) as events:
            async for data in events:
                yield data

    def ended(status: int) -> None:
        count(service.metrics, reply.error.status if reply.error else 200 if reply.recorded else status)

    async with Connected(request.receive):
        try:
            begun = await reply.begun(within=service.config.keepalive_seconds)
        except ApiError as error:
            if not reply.form.tells(error):
                raise
            begun = False
    source, headers = late(), dict[str, str]()
    if begun:
        note_reply(request.scope, reply)
        source, headers = reply.events(), reply.headers
    return EventStream(source, reply, headers, ended, keepalive_seconds=service.config.keepalive_seconds)


def count(metrics: GatewayMetrics, status: int) -> None:
    """Count a finished chat completion."""
    metrics.requests.labels(code=str(status)).inc()
    if status == 503:
        metrics.refused.inc()
