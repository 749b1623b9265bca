"""What the processes of one gateway share: one process leads, the others only reply.

The leading process has the ledger's writer, the sessions, the limits, the keys of episodes, the engine's cache keys, and
every route but those for replies. A worker asks it for them over a `Channel`; `Shared` is that for the worker's
`ChatService`, and `Lead` answers one worker.

Guarantees:

* Sessions and limits are one: two workers never disagree about a quota or a turn's session. A turn is in the ledger before
  its worker learns of it.
* Each reply begins with a question to the leading process. So its worker has heard everything that process said before:
  of a forgotten session, a changed lesson, a changed keys file (`openclaw.gateway.channel`).
* What a worker held when it died is given back: its requests end, its owners' replies are no longer under way, and the places
  of its turns are abandoned. A turn that it had handed over is recorded once; another is not.
* A key that has not worked from an address before is the leading process's to judge, which alone counts the unknown ones.
* A request for any other route goes to the leading process as it came, with its own guard, which reads the body only as far as
  that lets it.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openclaw.engine.client import MAX_OWNERS, AwayTime, CacheKeys, EngineState, TokenChunk
from openclaw.gateway.auth import Client, EpisodeKey, EpisodeKeys, Keyring
from openclaw.gateway.channel import Channel, ChannelLostError, Function
from openclaw.gateway.commands import Before, CommandDesk
from openclaw.gateway.earlier import EarlierVersions, Wanted
from openclaw.gateway.limits import RateLimits
from openclaw.ledger.records import Tokens, Turn
from openclaw.sessions import Sessions, TurnContext

if TYPE_CHECKING:
    from openclaw.gateway.chat import ChatService

logger = logging.getLogger(__name__)

SCOPE = (
    "type",
    "http_version",
    "method",
    "scheme",
    "path",
    "raw_path",
    "root_path",
    "query_string",
    "headers",
    "client",
    "server",
)
"""What the leading process learns of a request that is passed on."""
GONE: Message = {"type": "http.disconnect"}


@dataclass(frozen=True)
class Shared:
    """The leading process, for a `ChatService` of a worker; `of` makes it.

    Attributes:
        sessions: has what replies need of `Sessions`.
        limits: has what requests need of `RateLimits`.
        commands: has what chats need of `CommandDesk`.
        engine: what the workers' clients of the engine have in common.
        count: counts an owner's replies under way.
        earlier: earlier versions of the weights; None: there are none.
        episode_key: returns who sends an episode's key, given its digest; None: it is of no open episode.
        works: returns whether a key works from an address, given its digest (`Keyring.works`).
        pass_on: answers a request for another route.
    """

    sessions: Sessions
    limits: RateLimits
    commands: CommandDesk
    engine: EngineState
    count: Callable[[str, int], None]
    earlier: EarlierVersions | None
    episode_key: Callable[[bytes], Awaitable[EpisodeKey | None]]
    works: Callable[[bytes, str], Awaitable[bool]]
    pass_on: PassedOn

    @staticmethod
    def of(channel: Channel, passed: PassedOn, *, has_earlier: bool = False) -> Shared:
        """Return the leading process at the other end of ``channel``; ``has_earlier``: it has earlier versions of the weights."""
        return Shared(
            sessions=cast(Sessions, _Sessions(channel)),
            limits=cast(RateLimits, _Limits(channel)),
            commands=cast(CommandDesk, _Commands(channel)),
            engine=EngineState(_Away(channel), _CacheKeys(channel), _OneSuspect(channel)),
            count=lambda owner, change: channel.tell("count", owner, change),
            earlier=_Earlier(channel) if has_earlier else None,
            episode_key=lambda digest: channel.ask("episode_key", digest),
            works=lambda digest, address: channel.ask("works", digest, address),
            pass_on=passed,
        )


async def _take(channel: Channel, give_back: Callable[[], None], name: str, *given: Any) -> Any:
    """Ask for what must be given back; whoever is cancelled meanwhile gives back what comes later."""
    future = channel.ask(name, *given)
    try:
        return await asyncio.shield(future)
    except asyncio.CancelledError:

        def later(done: asyncio.Future[Any]) -> None:
            if not done.cancelled() and done.exception() is None:
                give_back()

        future.add_done_callback(later)
        raise


class _Sessions:
    """The leading process's sessions."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def begin(self, headers: Mapping[str, str], messages: Sequence[Any], **named: Any) -> TurnContext:
        return await self._channel.ask("begin", dict(headers), messages, named)

    async def record(self, context: TurnContext, turn: Turn) -> Turn:
        return _as_kept(turn, await self._channel.ask("record", context, turn))

    async def finish(self, context: TurnContext, turn: Turn) -> Turn:
        return _as_kept(turn, await self._channel.ask("finish", context, turn))

    async def spent_later(self, turn_id: str, owner: str, tokens: Tokens) -> None:
        await self._channel.ask("spent_later", turn_id, owner, tokens)

    def abandon(self, context: TurnContext) -> None:
        self._channel.tell("abandon", context)

    def undelivered(self, context: TurnContext, turn_id: str) -> None:
        self._channel.tell("undelivered", context, turn_id)

    async def close(self) -> None:
        """The leading process closes them."""


def _as_kept(turn: Turn, kept: tuple[bytes | None, list[int] | None]) -> Turn:
    """Return a turn as the ledger has it, as far as a worker remembers it; None: it has the same ids."""
    conversation, ids = kept
    return replace(turn, conversation=conversation, response_ids=turn.response_ids if ids is None else ids)


class _Limits:
    """The leading process's limits."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def enter(self, key: str, *, feedback: bool = False, reply: bool = True) -> None:
        assert reply, "every other request is passed on to the leading process"
        assert not feedback, "feedback is given to the leading process"
        await _take(self._channel, lambda: self._channel.tell("leave", key, 0), "enter", key)

    async def leave(self, key: str, tokens: int) -> None:
        self._channel.tell("leave", key, tokens)


class _Commands:
    """The leading process's commands."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def answer(self, words: str, before: Before, client: Client) -> str:
        return await self._channel.ask("command", words, replace(before, headers=dict(before.headers)), client)


class _CacheKeys(CacheKeys):
    """The leading process's keys, and those of them that this process has asked for."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel
        self._asked: OrderedDict[str, str] = OrderedDict()
        self._renewed = 0

    async def ask(self, owner: str) -> str:
        key = self._asked.get(owner)
        if key is None:
            renewed = self._renewed
            key = await self._channel.ask("cache_key", owner)
            if renewed != self._renewed:
                return key
            self._asked[owner] = key
            if len(self._asked) > MAX_OWNERS:
                self._asked.popitem(last=False)
        self._asked.move_to_end(owner)
        return key

    def renew(self, owner: str) -> None:
        self._asked.pop(owner, None)
        self._renewed += 1


class _Away(AwayTime):
    """The leading process's clock of the engine."""

    def __init__(self, channel: Channel) -> None:
        super().__init__(lambda: 0.0)
        self._channel = channel
        self._begun: set[str] = set()

    def begin(self, rid: str) -> None:
        if rid not in self._begun:
            self._begun.add(rid)
            self._channel.tell("away", rid, True)

    def end(self, rid: str) -> None:
        if rid in self._begun:
            self._begun.remove(rid)
            self._channel.tell("away", rid, False)


class _OneSuspect:
    """The leading process's lock for one suspect."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel

    async def acquire(self) -> None:
        await _take(self._channel, self.release, "suspect")

    def release(self) -> None:
        self._channel.tell("suspect_heard")


class _Earlier:
    """The leading process's earlier versions of the weights."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count(1)

    async def kept(self, owner: str) -> list[str]:
        return await self._channel.ask("earlier_kept", owner)

    async def generate(self, owner: str, wanted: Wanted) -> AsyncGenerator[TokenChunk, None]:
        number = next(self._numbers)
        self._channel.tell("earlier_begin", number, owner, wanted)
        try:
            while (chunk := await self._channel.ask("earlier_next", number)) is not None:
                yield chunk
        finally:
            self._channel.tell("earlier_stop", number)

    @asynccontextmanager
    async def forgetting(self) -> AsyncGenerator[None, None]:
        """The leading process does it."""
        yield

    async def close(self) -> None:
        """The leading process closes them."""


class PassedOn:
    """The requests of a worker that the leading process answers."""

    def __init__(self) -> None:
        self.channel: Channel | None = None
        self._numbers = itertools.count(1)
        self._open: dict[int, tuple[Receive, Send]] = {}

    def functions(self) -> dict[str, Function]:
        """Return what the leading process calls."""
        return {"receive": self._receive, "send": self._send}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request as the leading process does."""
        assert self.channel is not None
        number = next(self._numbers)
        self._open[number] = receive, send
        answered = self.channel.ask("answer", number, {name: scope[name] for name in SCOPE if name in scope})
        try:
            try:
                messages = await asyncio.shield(answered)
            except asyncio.CancelledError:  # the time that the server gives its last requests is over
                self.channel.tell("cancel", number)
                messages = await answered
            for message in messages:
                await send(message)
        finally:
            del self._open[number]

    async def _receive(self, number: int) -> Message:
        return await self._open[number][0]() if number in self._open else GONE

    async def _send(self, number: int, messages: Sequence[Message]) -> None:
        if number in self._open:
            _, send = self._open[number]
            for message in messages:
                await send(message)


class Lead:
    """The leading process's side of the channel to one worker."""

    def __init__(self, service: ChatService, app: ASGIApp, keyring: Keyring) -> None:
        """Prepare to answer a worker.

        Args:
            service: which leads.
            app: answers what the worker passes on.
            keyring: of the gateway.
        """
        self.channel: Channel | None = None
        self._service = service
        self._app = app
        self._keyring = keyring
        self._requests: Counter[str] = Counter()
        self._replies: Counter[str] = Counter()
        self._places: dict[str, list[TurnContext]] = {}
        self._away: set[str] = set()
        self._suspects = 0
        self._answers: dict[int, asyncio.Task[None]] = {}
        self._earlier: dict[int, AsyncGenerator[TokenChunk, None]] = {}
        self._following: dict[int, asyncio.Task[TokenChunk | None]] = {}

    def functions(self) -> dict[str, Function]:
        """Return what the worker calls."""
        return {
            "enter": self._enter,
            "leave": self._leave,
            "begin": self._begin,
            "record": self._record,
            "finish": self._finish,
            "abandon": self._abandon,
            "undelivered": self._service.sessions.undelivered,
            "spent_later": self._service.sessions.spent_later,
            "count": self._count,
            "command": self._service.commands.answer,
            "cache_key": self._service.engine.cache_keys.of,
            "away": self._note_away,
            "suspect": self._suspect,
            "suspect_heard": self._suspect_heard,
            "earlier_kept": self._earlier_kept,
            "earlier_begin": self._earlier_begin,
            "earlier_next": self._earlier_next,
            "earlier_stop": self._earlier_stop,
            "episode_key": self._keyring.episodes.find,
            "works": self._keyring.works,
            "answer": self._answer,
            "cancel": self._cancel,
        }

    async def give_back(self) -> None:
        """Give back what the worker held, once it is gone and what it had asked for is done."""
        assert self.channel is not None
        for number in list(self._earlier):
            try:
                await self._earlier_stop(number)
            except Exception:
                logger.exception("a reply of an earlier version did not end well; the rest is given back all the same")
        await self.channel.settled()
        for places in self._places.values():
            for context in places:
                self._service.sessions.abandon(context)
        for owner in self._replies.elements():
            self._service.replies.end(owner)
        for key in self._requests.elements():
            await self._service.limits.leave(key, 0)
        for rid in self._away:
            self._service.engine.away.end(rid)
        for _ in range(self._suspects):
            self._service.engine.state.one_suspect.release()

    # Limits

    async def _enter(self, key: str) -> None:
        await self._service.limits.enter(key, reply=True)
        self._requests[key] += 1

    async def _leave(self, key: str, tokens: int) -> None:
        self._requests[key] -= 1
        await self._service.limits.leave(key, tokens)

    # Replies

    def _count(self, owner: str, change: int) -> None:
        self._replies[owner] += change
        if change > 0:
            self._service.replies.begin(owner)
        else:
            self._service.replies.end(owner)
        if not self._replies[owner]:
            del self._replies[owner]

    async def _begin(
        self, headers: Mapping[str, str], messages: Sequence[Any], named: Mapping[str, Any]
    ) -> TurnContext:
        context = await self._service.sessions.begin(headers, messages, **named)
        self._places.setdefault(context.session_id, []).append(context)
        return context

    def _left(self, context: TurnContext) -> None:
        places = self._places[context.session_id]
        places.pop()
        if not places:
            del self._places[context.session_id]

    def _abandon(self, context: TurnContext) -> None:
        self._left(context)
        self._service.sessions.abandon(context)

    async def _record(self, context: TurnContext, turn: Turn) -> tuple[bytes | None, list[int] | None]:
        return self._kept(turn, await self._service.sessions.record(context, turn))

    async def _finish(self, context: TurnContext, turn: Turn) -> tuple[bytes | None, list[int] | None]:
        self._left(context)
        return self._kept(turn, await self._service.sessions.finish(context, turn))

    def _kept(self, turn: Turn, recorded: Turn) -> tuple[bytes | None, list[int] | None]:
        self._service.recorded(recorded)
        ids = None if recorded.response_ids == turn.response_ids else list(recorded.response_ids)
        return recorded.conversation, ids

    # The engine

    def _note_away(self, rid: str, begins: bool) -> None:
        if begins:
            self._away.add(rid)
            self._service.engine.away.begin(rid)
        else:
            self._away.discard(rid)
            self._service.engine.away.end(rid)

    async def _suspect(self) -> None:
        await self._service.engine.state.one_suspect.acquire()
        self._suspects += 1

    def _suspect_heard(self) -> None:
        self._suspects -= 1
        self._service.engine.state.one_suspect.release()

    # Earlier versions

    async def _earlier_kept(self, owner: str) -> list[str]:
        return [] if self._service.earlier is None else await self._service.earlier.kept(owner)

    def _earlier_begin(self, number: int, owner: str, wanted: Wanted) -> None:
        assert self._service.earlier is not None
        self._earlier[number] = self._service.earlier.generate(owner, wanted)

    async def _earlier_next(self, number: int) -> TokenChunk | None:
        """Return the next tokens; None: the reply is over, or was stopped."""
        reply = self._earlier.get(number)
        if reply is None:
            return None

        async def following() -> TokenChunk | None:
            return await anext(reply, None)

        task = self._following[number] = asyncio.create_task(following())
        await asyncio.wait({task})
        del self._following[number]
        return None if task.cancelled() else task.result()

    async def _earlier_stop(self, number: int) -> None:
        """End a reply, also one whose next tokens are waited for: a generator that runs cannot be closed."""
        reply, task = self._earlier.pop(number, None), self._following.get(number)
        if task is not None:
            task.cancel()
            await asyncio.wait({task})
        if reply is not None:
            await reply.aclose()

    # Other routes

    async def _answer(self, number: int, scope: Scope) -> list[Message]:
        """Return the answer to a request, as far as it was not sent in pieces: each piece waits for a round of the worker's loop."""
        task = asyncio.current_task()
        assert task is not None
        assert self.channel is not None
        channel, self._answers[number] = self.channel, task
        held: list[Message] = []

        async def receive() -> Message:
            try:
                return await channel.ask("receive", number)
            except ChannelLostError:
                return GONE

        async def send(message: Message) -> None:
            held.append(message)
            if message.get("more_body"):
                with suppress(ChannelLostError):
                    await channel.ask("send", number, held.copy())
                held.clear()

        try:
            await self._app({**scope, "asgi": {"version": "3.0", "spec_version": "2.3"}, "state": {}}, receive, send)
        except asyncio.CancelledError:
            held.clear()  # `_cancel`: its worker ends
        except Exception:
            logger.exception("a request for %s failed", scope["path"])
        finally:
            del self._answers[number]
        return held

    def _cancel(self, number: int) -> None:
        if number in self._answers:
            self._answers[number].cancel()


def announce(service: ChatService, tell: Callable[..., None]) -> None:
    """Let workers hear of what the leading process's ``service`` forgets; ``tell`` calls a function of each."""
    service.on_forgotten = lambda session_id: tell("forget", session_id)
    service.lessons.on_forgotten = lambda person: tell("forget_lessons", person)


def heard(service: ChatService) -> dict[str, Function]:
    """Return the functions of a worker that `announce` calls."""
    return {"forget": service.forget, "forget_lessons": service.lessons.forget}


async def admit_episode(shared: Shared, keyring: Keyring, digest: bytes) -> None:
    """Let a worker's ``keyring`` know the key of an episode with this digest exactly if the leading process does."""
    key = await shared.episode_key(digest)
    keyring.episodes = EpisodeKeys()
    if key is not None:
        keyring.episodes.add(digest, key)
