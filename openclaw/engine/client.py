"""The policy engine's `/generate` as a stream of exact tokens.

Guarantees: ids go in and ids come out. Each id has the engine's log-probability for that id, or the reply ends in
`EngineProtocolError`. If the engine is away (restarting, or paused for an update), a request waits up to
``wait_seconds``. If the engine goes away within a reply, the client continues from the delivered tokens, so that the
reader sees one reply. With an adapter per person it keeps the one that began it. Leaving the stream early aborts the generation.
Owns the connections.

Wire format: SGLang 0.5, server-sent events with new or cumulative ``output_ids``. Events that arrive together are
yielded together. Each request has its owner's cache key (`CacheKeys`).

An engine reuses the computed prefix of an earlier prompt, and the number of cached tokens and the time to the first token
tell how long that prefix was. `CacheKeys` keeps the prefixes of owners apart: keys are random and leave the gateway for the
engine only, so nobody finds what another owner's requests left there.

A request can be the cause of its engine's end. So each request under which an engine died is a suspect:

* It is sent once more. If that engine dies too before its first token, the request is refused.
* Suspects are sent one after the other, so that a bystander is not blamed twice for the request beside it.
* A request that got tokens from the engine that died is hardly the cause. It is sent again without waiting, but not after
  its third engine.

`Deaths` logs an engine's end once, with the names of the requests it had, which hold no contents. An engine that lives and
answers `MAX_FAILURES` times in a row with 500 refuses the request.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import orjson

from groundwork.people import mark_of, request_name
from openclaw.engine.canary import ShareReader
from openclaw.engine.connection import Answer, Connections
from openclaw.exceptions import (
    EngineAwayError,
    EngineBrokeOffError,
    EngineDiedError,
    EngineError,
    EngineProtocolError,
    EngineRejectedError,
    EngineReportedError,
)
from openclaw.ledger.records import VersionSpan
from openclaw.owners import root

CACHE_KEY = "extra_key"
"""The field of `/generate`."""
MAX_OWNERS = 1 << 14
BASE, NO_VERSION = "base", "0"
"""The adapter name with which an engine of a LoRA run answers as its base model, and the version of such answers; the version of
the base model as the answer to a person without an accepted adapter."""


def scoring_payload(prompt_ids: Sequence[int], reply_ids: Sequence[int]) -> dict[str, Any]:
    """Return the request that scores a stored reply at temperature 1; it starts a token early, which gets no value."""
    return {
        "input_ids": [*prompt_ids, *reply_ids],
        "sampling_params": {"max_new_tokens": 0, "temperature": 1.0},
        "return_logprob": True,
        "logprob_start_len": len(prompt_ids) - 1,
    }


def new_cache_key() -> str:
    """Return a key that no other request has."""
    return secrets.token_hex(16)


class CacheKeys:
    """The keys of one client of an engine, by owner (`openclaw.owners`); None stands for the runtime itself."""

    def __init__(self) -> None:
        self._keys: OrderedDict[str | None, str] = OrderedDict()

    def of(self, owner: str | None) -> str:
        """Return the key of what ``owner`` asks."""
        key = self._keys.get(owner)
        if key is None:
            key = self._keys[owner] = new_cache_key()
            if len(self._keys) > MAX_OWNERS:
                self._keys.popitem(last=False)
        self._keys.move_to_end(owner)
        return key

    async def ask(self, owner: str) -> str:
        """Return the key of what ``owner`` asks, from wherever it is kept."""
        return self.of(owner)

    def renew(self, owner: str) -> None:
        """Give ``owner`` another key from the next request on."""
        self._keys.pop(owner, None)


class AwayTime:
    """The clock of one engine, or of a router in front of several."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Start at 0; ``clock``: monotonic seconds."""
        self._clock = clock
        self._total = self._since = 0.0
        self._waiting: set[str] = set()

    @property
    def seconds(self) -> float:
        """Seconds since the start in which at least one request waited, up to now."""
        return self._total + (self._clock() - self._since if self._waiting else 0.0)

    def begin(self, rid: str) -> None:
        """Count from now on, unless the request of this name waits already."""
        if not self._waiting:
            self._since = self._clock()
        self._waiting.add(rid)

    def end(self, rid: str) -> None:
        """Count no more for the request; a no-op if it does not wait."""
        if rid in self._waiting:
            self._waiting.remove(rid)
            if not self._waiting:
                self._total += self._clock() - self._since


logger = logging.getLogger(__name__)

MAX_DEATHS_UNHEARD = 2
"""Engines that may die under a request without a token for it."""
MAX_DEATHS = 3
GATHER_SECONDS = 0.5
"""How long the log waits for the other requests of the same engine."""


class OneAtATime(Protocol):
    """What a suspect holds while it is with the engine, as `asyncio.Lock`."""

    async def acquire(self) -> Any:
        """Wait until no other suspect holds it."""
        ...

    def release(self) -> None:
        """Let the next one go on."""
        ...


@dataclass
class Suspicion:
    """The engines that died under one request: all, and those from which it got no token."""

    deaths: int = 0
    unheard: int = 0


class Deaths:
    """Judges the requests of engines that died."""

    def __init__(self, url: str, on_death: Callable[[str], None], one_suspect: OneAtATime) -> None:
        """Create the judge of ``url``; call ``on_death`` with ``resent`` or ``refused`` for each request."""
        self._url = url
        self._on_death = on_death
        self._one_suspect = one_suspect
        self._names: list[str] = []

    def note(self, name: str, suspicion: Suspicion, *, heard: bool) -> None:
        """Count a death under a request that got tokens from that engine (``heard``) or not.

        Raises:
            EngineDiedError: when the request must not be sent again.
        """
        suspicion.deaths += 1
        suspicion.unheard += not heard
        if not self._names:
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._log)
        self._names.append(name)
        refused = suspicion.unheard >= MAX_DEATHS_UNHEARD or suspicion.deaths >= MAX_DEATHS
        self._on_death("refused" if refused else "resent")
        if refused:
            raise EngineDiedError(f"the engine ended {suspicion.deaths} times while it worked on this request")

    @asynccontextmanager
    async def turn(self, suspicion: Suspicion) -> AsyncIterator[Callable[[], None]]:
        """Wait until no other suspect is with the engine; yields what to call at the first token."""
        if not suspicion.unheard:
            yield lambda: None
            return
        await self._one_suspect.acquire()
        held = True

        def heard() -> None:
            nonlocal held
            if held:
                held = False
                self._one_suspect.release()

        try:
            yield heard
        finally:
            heard()

    def _log(self) -> None:
        names, self._names = self._names, []
        logger.warning(
            "the engine at %s ended while it worked on %d requests: %s", self._url, len(names), ", ".join(names)
        )


FIRST_PAUSE_SECONDS = 0.05
MAX_PAUSE_SECONDS = 1.0
ABORT_SECONDS = 5.0
GOES_ON = 202
"""Status of an engine that ends no reply early: the answer to an abort says at the reply's end what it took."""
GRAMMAR_PARAMETER = "structural_tag"
MIN_NEW_TOKENS = "min_new_tokens"
AWAY_STATUS = (429, 500, 502, 503, 504)
MAX_FAILURES = 6
"""Over about 1.5 s, longer than an engine that ends still answers."""


@dataclass(slots=True)
class TokenChunk:
    """Tokens from the engine.

    Attributes:
        ids: new response ids.
        logprobs: one per id, at the sampling temperature.
        weight_version: the engine's weights when it sent them.
        finish: ``stop`` or ``length`` in the last chunk of the reply, otherwise None.
        versions: in the last chunk, the weights of each span of the whole reply, if the engine reports them.
        cached_tokens: prompt tokens found in the engine's cache.
        top: for each id ``[logprob, id, ...]`` of the most likely tokens, if requested.
        fallback: the person's newer adapter that could not be loaded, if an older one answers instead.
    """

    ids: list[int]
    logprobs: list[float]
    weight_version: str
    finish: str | None = None
    versions: tuple[VersionSpan, ...] = ()
    cached_tokens: int = 0
    top: list[Any] = field(default_factory=list)
    fallback: str | None = None


@dataclass(frozen=True)
class EnginePictures:
    """The pictures of a prompt as an engine takes them.

    Attributes:
        input_ids: the prompt with one placeholder for each picture, which the engine repeats.
        urls: ``data:`` URLs of the files, in order.
    """

    input_ids: Sequence[int]
    urls: Sequence[str] = field(repr=False)


@dataclass
class _Progress:
    """The delivered part of one reply, over all attempts; ``adapter`` is the person's that began it, None for the base.

    ``on_unread`` is called with the tokens of an attempt that ended unread.
    """

    ids: list[int] = field(default_factory=list)
    adapter: str | None = None
    attempts: int = 0
    failures: int = 0
    away_since: float | None = None
    suspicion: Suspicion = field(default_factory=Suspicion)
    on_unread: Callable[[int], None] | None = None


@dataclass
class EngineState:
    """What all clients of one engine have in common, in whichever process of the gateway they are.

    Attributes:
        away: how long requests waited for it.
        cache_keys: of the owners.
        one_suspect: see `Deaths`.
    """

    away: AwayTime
    cache_keys: CacheKeys = field(default_factory=CacheKeys)
    one_suspect: OneAtATime = field(default_factory=asyncio.Lock)


class EngineClient:
    """Client of one engine, or of a router in front of several."""

    def __init__(
        self,
        url: str,
        *,
        wait_seconds: float,
        on_retry: Callable[[str], None] = lambda kind: None,
        on_death: Callable[[str], None] = lambda outcome: None,
        clock: Callable[[], float] = time.monotonic,
        canary: ShareReader | None = None,
        per_person: bool = False,
        state: EngineState | None = None,
    ) -> None:
        """Create a client of ``url``.

        Args:
            url: ``http://HOST:PORT``.
            wait_seconds: how long a request waits for an engine that is away.
            on_retry: called with ``away``, ``resumed`` or ``canary`` whenever a request is sent again.
            on_death: called with ``resent`` or ``refused`` for each request under which an engine ended.
            clock: monotonic seconds; `away` counts by it, too.
            canary: which conversations go to the engine that has a candidate before the others; None: none.
            per_person: whether engines answer each person with an adapter of their own; another's answer is an error.
            state: of the engine, which other processes may share; None: this client's own.
        """
        self._per_person = per_person
        self.url = url.rstrip("/")
        self._wait_seconds = wait_seconds
        self._on_retry = on_retry
        self._clock = clock
        self.state = state or EngineState(AwayTime(clock))
        self.away, self.cache_keys = self.state.away, self.state.cache_keys
        self._last_version = "default"
        self._aborts: set[asyncio.Task[None]] = set()
        self._connections = Connections(self.url)
        self._deaths = Deaths(self.url, on_death, self.state.one_suspect)
        self._canary = canary
        self._canary_connections: Connections | None = None

    async def close(self) -> None:
        """Finish the pending aborts, then close the connections."""
        if self._aborts:
            await asyncio.wait(self._aborts, timeout=ABORT_SECONDS)
        self._connections.close()
        if self._canary_connections is not None:
            self._canary_connections.close()

    async def generate(
        self,
        rid: str,
        input_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        top_logprobs: int = 0,
        routing_key: str | None = None,
        client: str = "-",
        pictures: EnginePictures | None = None,
        *,
        owner: str,
        on_unread: Callable[[int], None] | None = None,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Yield the reply to ``input_ids``; the last chunk has ``finish``. Close the iterator to abort.

        Args:
            rid: unique name of the request, not a prefix of another's, because the engine aborts by prefix.
            input_ids: the prompt.
            sampling_params: as `/generate` takes them; needs ``max_new_tokens``.
            top_logprobs: number of most likely tokens reported per position.
            routing_key: names the conversation for a router; see `Connections.post`.
            client: whose request it is, for the log of an engine's end.
            pictures: of the prompt; ``input_ids`` then has all of their placeholders.
            owner: whose cached prefixes the request may find.
            on_unread: called with the number of tokens of a reply that was aborted, and that the engine finished all the same.

        Raises:
            EngineAwayError: no engine for ``wait_seconds``, or it went away within a reply that follows a grammar,
                which the next engine would start from the beginning.
            EngineRejectedError: the engine refused the request.
            EngineDiedError: engines ended while they worked on it, see `Deaths`.
            EngineProtocolError: the engine broke its format.
        """
        progress = _Progress(on_unread=on_unread)
        pause = FIRST_PAUSE_SECONDS
        canary = self._drawn(routing_key, sampling_params)
        try:
            while len(progress.ids) < sampling_params["max_new_tokens"]:
                before = len(progress.ids)
                try:
                    engine = canary or self._connections
                    attempt = self._attempt(
                        engine, rid, input_ids, sampling_params, progress, top_logprobs, routing_key, pictures, owner
                    )
                    async with self._deaths.turn(progress.suspicion) as heard, aclosing(attempt) as chunks:
                        async for chunk in chunks:
                            heard()
                            self.away.end(rid)
                            yield chunk
                    return
                except (EngineBrokeOffError, EngineProtocolError) as error:
                    if canary is not None:  # whatever it is, another engine goes on with the reply
                        canary = None
                        self._left_canary(rid, error)
                        progress.attempts += 1
                        continue
                    if isinstance(error, EngineProtocolError):
                        raise
                    heard_tokens = len(progress.ids) > before
                    if error.while_working:
                        name = f"{rid} (key {client}, conversation {routing_key})"
                        self._deaths.note(name, progress.suspicion, heard=heard_tokens)
                    failed = isinstance(error, EngineReportedError) and error.status == 500
                    progress.failures = progress.failures + 1 if failed and not heard_tokens else int(failed)
                    if progress.failures >= MAX_FAILURES or (
                        failed and progress.ids and GRAMMAR_PARAMETER in sampling_params
                    ):
                        raise EngineRejectedError(f"{progress.failures} times: {error}") from error
                    if progress.ids and GRAMMAR_PARAMETER in sampling_params:
                        raise EngineAwayError(
                            f"{self.url} went away within a reply that follows a grammar: {error}"
                        ) from error
                    now = self._clock()
                    if progress.away_since is None or heard_tokens:
                        progress.away_since, pause = now, FIRST_PAUSE_SECONDS
                    if now - progress.away_since + pause > self._wait_seconds:
                        raise EngineAwayError(
                            f"no answer for {self._wait_seconds:g} s from {self.url}: {error}"
                        ) from error
                    logger.warning("request %s waits for the engine after %d tokens: %s", rid, len(progress.ids), error)
                self.away.begin(rid)
                self._on_retry("resumed" if progress.ids else "away")
                await asyncio.sleep(pause)
                pause = min(MAX_PAUSE_SECONDS, pause * 2)
                progress.attempts += 1
            # All tokens were delivered, but the connection broke before the engine reported the end.
            yield TokenChunk([], [], self._last_version, finish="length")
        finally:
            self.away.end(rid)

    def _drawn(self, routing_key: str | None, sampling_params: Mapping[str, Any]) -> Connections | None:
        """Return the connections to the engine that has a candidate first, if the conversation is drawn.

        A reply that follows a grammar is not, because no other engine could go on with it.
        """
        if self._canary is None or routing_key is None or GRAMMAR_PARAMETER in sampling_params:
            return None
        url = self._canary.drawn(routing_key)
        if url is None:
            return None
        if self._canary_connections is None or self._canary_connections.url != url:
            if self._canary_connections is not None:
                self._canary_connections.close()
            self._canary_connections = Connections(url)
        return self._canary_connections

    def _left_canary(self, rid: str, error: EngineError) -> None:
        assert self._canary is not None
        self._canary.failed(_without_text(error))
        self._on_retry("canary")
        logger.warning("request %s leaves the engine that has a candidate first: %s", rid, error)

    async def _attempt(
        self,
        engine: Connections,
        rid: str,
        input_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        progress: _Progress,
        top_logprobs: int,
        routing_key: str | None,
        pictures: EnginePictures | None,
        owner: str,
    ) -> AsyncGenerator[TokenChunk, None]:
        """Request the rest of the reply once; raise EngineBrokeOffError to have it retried."""
        base = len(progress.ids)
        # SGLang aborts by prefix of the name: a late abort of one attempt must not end the next attempt.
        name = rid if progress.attempts == 0 else f"retry-{progress.attempts}-{rid}"
        payload = {
            "rid": name,
            CACHE_KEY: await self.cache_keys.ask(owner),
            "input_ids": [*input_ids, *progress.ids],
            "sampling_params": _rest_of(sampling_params, base),
            "return_logprob": True,
            "stream": True,
        }
        if top_logprobs:
            payload["top_logprobs_num"] = top_logprobs
        mark = None
        if self._per_person:
            payload["lora_path"] = progress.adapter or request_name(root(owner))
            mark = mark_of(root(owner))
        expected = None
        if pictures is not None:
            payload |= {"input_ids": [*pictures.input_ids, *progress.ids], "image_data": list(pictures.urls)}
            expected = len(input_ids) + base
        running = False
        try:
            async with engine.post("/generate", orjson.dumps(payload), routing_key) as answer:
                await self._check_status(answer)
                running = True
                events = _Events()
                while not events.over and (data := await answer.read()):
                    for chunk in _read_chunks(events.push(data), base, progress, expected, mark):
                        self._last_version = chunk.weight_version
                        running = chunk.finish is None
                        answer.finished = not running
                        yield chunk
                        if not running:
                            return
            raise EngineBrokeOffError("the stream ended before the reply was complete")
        except EngineBrokeOffError as error:
            error.while_working = running and not isinstance(error, EngineReportedError)
            raise
        finally:
            if running:
                self._abort(engine, name, progress.on_unread)

    async def _check_status(self, answer: Answer) -> None:
        if answer.status == 200:
            return
        body = b""
        while part := await answer.read():
            body += part
        words = f"{self.url} answered {answer.status}: {body.decode(errors='replace')[:500]}"
        if answer.status in AWAY_STATUS:
            raise EngineReportedError(words, answer.status)
        raise EngineRejectedError(words)

    def _abort(self, engine: Connections, name: str, on_unread: Callable[[int], None] | None) -> None:
        """Abort ``name`` at the engine; failures are logged only, because the engine may be gone."""
        task = asyncio.get_running_loop().create_task(self._send_abort(engine, name, on_unread))
        self._aborts.add(task)
        task.add_done_callback(self._aborts.discard)

    async def _send_abort(self, engine: Connections, name: str, on_unread: Callable[[int], None] | None) -> None:
        try:
            async with asyncio.timeout(ABORT_SECONDS) as limit:
                async with engine.post("/abort_request", orjson.dumps({"rid": name})) as answer:
                    if answer.status == GOES_ON:
                        limit.reschedule(None)
                    body = b""
                    while part := await answer.read():
                        body += part
            if answer.status == GOES_ON and on_unread is not None:
                on_unread(int(orjson.loads(body)["completion_tokens"]))
        except (EngineBrokeOffError, TimeoutError, ValueError) as error:
            logger.info("could not abort %s: %s", name, error)


def _rest_of(sampling_params: Mapping[str, Any], delivered: int) -> dict[str, Any]:
    """Return the sampling parameters for the rest of a reply after ``delivered`` tokens."""
    rest = {**sampling_params, "max_new_tokens": sampling_params["max_new_tokens"] - delivered}
    if MIN_NEW_TOKENS in rest:
        rest[MIN_NEW_TOKENS] = max(0, rest[MIN_NEW_TOKENS] - delivered)
    return rest


class _Events:
    """Splits the body of an answer into server-sent events; ``over`` after ``[DONE]``."""

    def __init__(self) -> None:
        self.over = False
        self._rest = b""

    def push(self, data: bytes) -> list[bytes]:
        """Return the bodies of the events that end in ``data``."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        bodies = [line[5:] for line in lines if line.startswith(b"data:")]
        if bodies and bodies[-1].strip() == b"[DONE]":
            self.over = True
            bodies.pop()
        return bodies


def _read_chunks(
    bodies: list[bytes], base: int, progress: _Progress, prompt_tokens: int | None = None, mark: str | None = None
) -> Iterator[TokenChunk]:
    """Yield the tokens of events and count them as delivered; see `_read_chunk`.

    Neighbours of the same weights become one chunk, and an error is raised after the chunks before it.

    Args:
        bodies: of the events.
        base: response tokens that earlier attempts delivered.
        progress: of the reply.
        prompt_tokens: the number that the engine must have read, if it repeated placeholders; None: any.
        mark: whose adapter must have answered; None: anybody's.
    """
    held: TokenChunk | None = None
    failure: EngineError | None = None
    for body in bodies:
        try:
            chunk = _read_event(body, base, progress, prompt_tokens, mark)
        except EngineError as error:
            failure = error
            break
        progress.ids.extend(chunk.ids)
        if held is None:
            held = chunk
        elif held.weight_version == chunk.weight_version:
            chunk.ids, chunk.logprobs = held.ids + chunk.ids, held.logprobs + chunk.logprobs
            chunk.top = held.top + chunk.top
            held = chunk
        else:
            yield held
            held = chunk
    if held is not None:
        yield held
    if failure is not None:
        raise failure


def _read_event(body: bytes, base: int, progress: _Progress, prompt_tokens: int | None, mark: str | None) -> TokenChunk:
    """Return the new tokens of one event; the arguments are those of `_read_chunks`."""
    try:
        event = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise EngineProtocolError(f"the engine sent an event that is not JSON: {body[:200]!r}") from error
    chunk = _read_chunk(event, base, len(progress.ids) - base)
    if prompt_tokens is not None and event["meta_info"].get("prompt_tokens") != prompt_tokens:
        raise EngineProtocolError(
            f"the prompt has {prompt_tokens} tokens with its pictures, but the engine counts "
            f"{event['meta_info'].get('prompt_tokens')}; both must use the same preprocessor_config.json"
        )
    if mark is not None:
        check_adapter(event["meta_info"], mark)
        adapter = event["meta_info"]["adapter"]
        progress.adapter = None if adapter == BASE else adapter
    return chunk


def check_adapter(meta: Mapping[str, Any], mark: str) -> None:
    """Check that the adapter of a person, by `groundwork.people.mark_of`, gave an answer, or the base if there is none.

    Raises:
        EngineProtocolError: another gave it, or the engine does not say.
    """
    adapter, version = str(meta.get("adapter")), meta.get("weight_version")
    if not (adapter.endswith(f"-{mark}") or (adapter == BASE and version == NO_VERSION)):
        raise EngineProtocolError(
            f"the adapter of person {mark} was asked, but {adapter} of version {version} answered; the engine must run with "
            "--adapter-per-person"
        )


def _read_chunk(event: dict[str, Any], base: int, have: int) -> TokenChunk:
    """Return the new tokens of an event.

    Args:
        event: of the stream.
        base: response tokens that earlier attempts delivered.
        have: response tokens that this attempt delivered before.
    """
    if "error" in event:
        _raise_error(event["error"])
    try:
        meta = event["meta_info"]
        finish = meta.get("finish_reason")
        kind = finish["type"] if finish else None
        if kind == "abort":
            _raise_abort(finish)
        total = meta["completion_tokens"]
        new = total - have
        ids, entries = event["output_ids"], meta.get("output_token_logprobs") or []
        if len(ids) not in (new, total) or new < 0 or len(entries) < new:
            raise EngineProtocolError(
                f"{total} tokens were generated and {have} delivered, but the engine sent {len(ids)} ids "
                f"and {len(entries)} logprobs"
            )
        if len(ids) != new:
            ids = ids[len(ids) - new :]
        if len(entries) != new:
            entries = entries[len(entries) - new :]
        if [entry[1] for entry in entries] != ids:
            raise EngineProtocolError("the engine's logprobs belong to other tokens than it sampled")
        top = meta.get("output_top_logprobs") or []
        if top and len(top) < new:
            raise EngineProtocolError(f"the engine sent top logprobs for {len(top)} positions, but {new} tokens")
        return TokenChunk(
            ids=ids,
            logprobs=[entry[0] for entry in entries],
            weight_version=str(meta.get("weight_version", "default")),
            finish=kind,
            versions=_spans(meta.get("weight_versions"), base) if kind else (),
            cached_tokens=meta.get("cached_tokens") or 0,
            top=top[len(top) - new :] if top else top,
            fallback=fallback.get("adapter") if (fallback := meta.get("adapter_fallback")) else None,
        )
    except (KeyError, TypeError, IndexError) as error:
        raise EngineProtocolError(f"the engine sent an event without {error}: {str(event)[:300]}") from error


def _without_text(error: EngineError) -> str:
    """Return what an error is, for a note that outlives the session: without the engine's words, which may hold the reply."""
    name = type(error).__name__
    if isinstance(error, EngineReportedError):
        return f"{name}: status {error.status}"
    return name if isinstance(error, EngineProtocolError) else f"{name}: {error}"


def _raise_error(error: Any) -> None:
    """Raise for an error event: a 4xx code blames the request, any other the engine."""
    code = error.get("code") if isinstance(error, dict) else None
    if isinstance(code, int) and 400 <= code < 500 and code not in AWAY_STATUS:
        raise EngineRejectedError(f"the engine reported {error.get('message')}")
    raise EngineReportedError(f"the engine reported {error}", code if isinstance(code, int) else None)


def _raise_abort(finish: dict[str, Any]) -> None:
    status = finish.get("status_code")
    words = f"the engine aborted the request: {finish.get('message')}"
    if status is not None and 400 <= int(status) < 500:
        raise EngineRejectedError(words)
    raise EngineReportedError(words, None if status is None else int(status))


def _spans(versions: list[dict[str, Any]] | None, base: int) -> tuple[VersionSpan, ...]:
    return tuple(VersionSpan(str(span["version"]), base + span["start"], base + span["end"]) for span in versions or ())
