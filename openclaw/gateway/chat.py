"""The life of a chat completion: prompt, session, tokens, turn.

Guarantees: a turn is in the ledger before the client learns that the reply is over. When a client disconnects, the
engine stops generating, and the partial reply is recorded as an aborted turn. A reply that cannot be recorded ends in
an error. `openclaw.gateway.reply` carries each reply from its prompt to the ledger.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any

from chat_codec.detokenize import Vocabulary
from chat_codec.formats import ReplyFormat
from chat_codec.renderer import Renderer, RenderError
from chat_codec.reply_parser import ReplyParser
from openclaw.config.bounds import SESSION_ID
from openclaw.config.runtime import RuntimeConfig
from openclaw.engine.client import EngineClient
from openclaw.gateway.capture import Capture, Prompt, usage
from openclaw.gateway.episodes import EpisodeDesk
from openclaw.gateway.errors import ApiError, bad_request
from openclaw.gateway.feedback import FeedbackDesk
from openclaw.gateway.grammar import reply_grammar
from openclaw.gateway.known_fields import prompt_characters
from openclaw.gateway.large_bodies import LargeBodies
from openclaw.gateway.logprobs import LogprobEntries
from openclaw.gateway.metrics import GatewayMetrics
from openclaw.gateway.outcomes import OutcomeDesk
from openclaw.gateway.pictures import Picture, PictureReader, engine_pictures
from openclaw.gateway.reply import Opening, Replies, Reply
from openclaw.gateway.rollouts import RolloutDesk
from openclaw.gateway.sampling import plan_sampling
from openclaw.gateway.schema import ChatRequest
from openclaw.gateway.served import Served, ServedReplies
from openclaw.gateway.stream import DONE, ChunkWriter, choice, event, head
from openclaw.messages.issued import new_completion_id, tool_call_id
from openclaw.owners import LOCAL, episode_of
from openclaw.sessions import Sessions

CLOSE_SECONDS = 10.0
UNLIKE = (
    "the last reply that this request carries is not the one that this session got, so what follows it is not feedback; "
    "send the reply as it came"
)
"""What an answer says if `TurnContext.unlike` holds."""
LARGE_PROMPT = 1 << 17
"""Characters of a prompt that is tokenised beside the others, not before them: a quarter of a second's work."""


class ChatService:
    """Answers chat completions."""

    def __init__(
        self,
        config: RuntimeConfig,
        *,
        renderer: Renderer,
        large_renderer: Renderer,
        vocabulary: Vocabulary,
        reply_format: ReplyFormat,
        engine: EngineClient,
        sessions: Sessions,
        served: ServedReplies,
        pictures: PictureReader,
        feedback: FeedbackDesk,
        episodes: EpisodeDesk,
        outcomes: OutcomeDesk,
        rollouts: RolloutDesk,
        metrics: GatewayMetrics,
        clock: Callable[[], float] = time.time,
        topk: int = 0,
    ) -> None:
        self.config = config
        self.engine = engine
        self.sessions = sessions
        self.feedback = feedback
        self.episodes = episodes
        self.outcomes = outcomes
        self.rollouts = rollouts
        self.metrics = metrics
        self.clock = clock
        self.replies = Replies(engine, sessions, metrics, clock, served.remember)
        episodes.quiet = self.replies.quiet
        self.large_bodies = LargeBodies(config.context_length)
        self._served = served
        self._pictures = pictures
        self._model_name = config.model_name
        self._renderer = renderer
        self._large_renderer = large_renderer
        self._vocabulary = vocabulary
        self._format = reply_format
        self._topk = topk

    def reply(
        self, request: ChatRequest, raw: Mapping[str, Any], headers: Mapping[str, str], owner: str = LOCAL
    ) -> Reply:
        """Return the reply to a request; entering it starts it.

        Args:
            request: the result of `parse_request`.
            raw: the request's JSON, as `parse_request` returns it.
            headers: of the HTTP request.
            owner: of the turn. The agent of an episode gets what the policy samples by itself, whatever temperature it asks
                for, because no other reply can be trained.
        """
        if episode_of(owner) is not None:
            request = request.model_copy(update={"temperature": None, "top_p": None, "seed": None})

        async def prepare() -> Opening:
            stated_kind, done = read_headers(headers, request)
            messages, pictures = await self._pictures.read(raw["messages"], owner)
            served, history = await self._served.find(messages, request.tool_schemas, owner)
            prompt = await self._prompt(request, {**raw, "messages": messages}, served, pictures)
            begin = partial(
                self.sessions.begin,
                headers,
                prompt.messages,
                owner=owner,
                body_session_id=request.session_id,
                stated_kind=stated_kind,
                done=done,
                tools=bool(request.tools),
                history=history,
            )
            return Opening([self._capture(prompt, index) for index in range(request.choices)], begin)

        return Reply(self.replies, prepare, owner)

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
        vocabulary, unsaid = self._vocabulary, frozenset(request.stop_token_ids or ())
        silent = vocabulary.silent
        if request.shows_special_tokens:
            silent, unsaid = frozenset[int](), unsaid | vocabulary.silent
        entries = LogprobEntries(vocabulary, request.top_logprobs or 0, silent) if request.logprobs else None
        return Capture(prompt, vocabulary.detokenizer(silent), parser, index, entries, unsaid)

    async def whole(self, reply: Reply) -> dict[str, Any]:
        """Return a started reply as one JSON object."""
        async with aclosing(reply.steps()) as steps:
            async for _ in steps:
                continue
        choices = [
            choice(
                capture.index,
                capture.builder.message(),
                capture.finish_reason or "stop",
                None if capture.entries is None else capture.content_logprobs,
            )
            for capture in reply.captures
        ]
        told = {"warning": UNLIKE} if reply.context.unlike else {}
        return {**self._head(reply), "choices": choices, "usage": usage(reply.captures), **told}

    async def events(self, reply: Reply) -> AsyncGenerator[bytes, None]:
        """Yield a started reply as server-sent events."""
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
        except ApiError as error:
            yield event(error.body())
            return
        ends = b"".join(writer.finish(capture.index, capture.finish_reason or "stop") for capture in reply.captures)
        yield ends + writer.usage(usage(reply.captures)) + DONE

    def _head(self, reply: Reply) -> dict[str, Any]:
        prompt = reply.capture.prompt
        return head(prompt.id, self._model_name, prompt.created_at, reply.capture.weight_version)

    async def close(self) -> None:
        """Finish the work of disconnected clients, then release the engine and the ledger's thread."""
        await self.replies.drain(CLOSE_SECONDS)
        await self.large_bodies.close()
        await self.engine.close()
        await self.sessions.close()
        self._renderer.close()
        self._large_renderer.close()
        self._pictures.close()

    async def _prompt(
        self, request: ChatRequest, raw: Mapping[str, Any], served: Served, pictures: Sequence[Picture]
    ) -> Prompt:
        """Render a request and plan its sampling."""
        created_at = self.clock()
        tools = list(raw["tools"]) if request.offers_tools else None
        large = prompt_characters(raw["messages"], tools or ()) > LARGE_PROMPT
        renderer = self._large_renderer if large else self._renderer
        try:
            template_ids, thought = await renderer.prepare(
                raw["messages"], tools, request.template_kwargs, self._format.reasoning, served
            )
        except RenderError as error:
            raise bad_request(str(error), param="messages") from error
        ids, seen = self._pictures.expanded(template_ids, pictures)
        self.metrics.replayed_replies.labels(ids="sampled").inc(served.sampled)
        self.metrics.replayed_replies.labels(ids="rendered").inc(served.rendered)
        room = self.config.context_length - len(ids)
        if room <= 0:
            raise bad_request(
                f"This model's maximum context length is {self.config.context_length} tokens. However, your messages "
                f"resulted in {len(ids)} tokens. Please reduce the length of the messages.",
                param="messages",
                code="context_length_exceeded",
            )
        grammar = reply_grammar(request, self._format.tools, self._format.reasoning, thought)
        plan = plan_sampling(request, self.config, room, grammar, vocabulary=self._vocabulary)
        return Prompt(
            id=new_completion_id(),
            request=request,
            messages=list(raw["messages"]),
            tools=tools,
            ids=ids,
            pictures=seen,
            for_engine=engine_pictures(template_ids, seen),
            placeholders=self._pictures.placeholders,
            inside_reasoning=thought == "open",
            plan=plan,
            created_at=created_at,
            topk=self._topk if plan.excluded is None else 0,
        )


def read_headers(headers: Mapping[str, str], request: ChatRequest) -> tuple[Any, bool]:
    """Return the client's turn type or None, and whether the session ends with this turn.

    Raises:
        ApiError: 400 for an invalid header.
    """
    kind = headers.get("x-turn-type", "").strip().lower() or request.turn_type
    if kind not in (None, "main", "side"):
        raise bad_request(f"X-Turn-Type: {kind!r} is unknown; send main or side", param="X-Turn-Type")
    if any(
        len(headers.get(name, "")) > SESSION_ID.most for name in ("x-session-id", "session_id", "x-session-affinity")
    ):
        raise bad_request(
            f"X-Session-Id: send at most {SESSION_ID.most} characters", param="X-Session-Id", bound=SESSION_ID
        )
    done = headers.get("x-session-done", "").strip().lower()
    return kind, done in ("1", "true", "yes") or bool(request.session_done)
