"""Serve a stand-in for an SGLang engine and its router, without a model: a script decides the replies.

The contract's checker, the tests and the benchmarks share it. Guarantees: the wire format is that of SGLang 0.5, whole or
with incremental streaming; a log-probability is a pure function of position and id; with ``step_seconds`` every running
request gets one token in the same decode step, as from a batching engine. Owns its connections until `serving` ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, cast
from urllib.parse import parse_qsl, urlsplit

import orjson

Script = Callable[[list[int]], Sequence[int]]
"""Prompt ids to reply ids. A request that goes on from delivered tokens gets the rest of them."""
Payload = dict[str, Any]
Answer = tuple[int, Any] | AsyncIterator[bytes]
"""Status and JSON, or the parts of a stream."""
WAIT_SECONDS = 20.0
REPLY_TOKENS, ABORTED_TOKENS = 6, 2
FIRST_LETTER, LETTERS = 33, 90
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
WHOLE_HEAD = b"HTTP/1.1 %d -\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def logprob_of(position: int, token: int) -> float:
    """Return the log-probability that the engine gives ``token`` at ``position`` of a reply."""
    return -((token * 7919 + position * 104729) % 1000 + 1) / 257.0


def likeliest(position: int, token: int, count: int) -> list[list[Any]]:
    """Return the ``count`` likeliest tokens where ``token`` was sampled: itself, its successors, one impossible token."""
    results: list[list[Any]] = [[logprob_of(position, token) - n, token + n, None] for n in range(count - 1)]
    return [*results, [-3.4e38, 0, None]]


def event(value: Any) -> bytes:
    """Return a server-sent event."""
    return b"data: " + orjson.dumps(value) + b"\n\n"


class StandInEngine:
    """One stand-in engine; whoever holds it changes its attributes between and during requests.

    Attributes:
        version: of the weights; `resume` sets it.
        requests: payloads of `/generate` and `/v1/chat/completions`, in order.
        routing_keys: the router's header of each.
        running, aborted: names of requests under way, and of those that a client has aborted.
        text_of: ids to the text of a reply.
        aborting: whole replies end as aborted after `ABORTED_TOKENS`.
        cumulative: each event repeats the ids before it.
        prompt_tokens: what a reply says of its payload's length.
        chunk_tokens: tokens of an event.
        token_gate: each event takes one permit.
        fail_with: statuses of the next requests.
        events_first: the next requests get one of these and no reply.
        event_after_first: ends a reply after its first event.
        break_after: the next reply that is longer ends after so many tokens, as if the engine had gone.
        dies_of: a payload of which the engine dies, with all that runs; ``deaths`` counts.

    Example:
        >>> engine = StandInEngine(script=lambda prompt: [7, 8, 9][: prompt[0]])
        >>> reply = asyncio.run(engine.whole({"input_ids": [2]}))
        >>> reply["output_ids"], reply["meta_info"]["weight_version"]
        ([7, 8], '1')
    """

    def __init__(self, script: Script, step_seconds: float = 0.0) -> None:
        self.script = script
        self.step_seconds = step_seconds
        self.version = "1"
        self.requests: list[Payload] = []
        self.routing_keys: list[str | None] = []
        self.aborted: list[str] = []
        self.running: set[str] = set()
        self.text_of: Callable[[Sequence[int]], str] = lambda ids: ""
        self.aborting = False
        self.cumulative = False
        self.prompt_tokens: Callable[[Payload], int] = lambda payload: len(prompt_of(payload))
        self.chunk_tokens = 1
        self.token_gate: asyncio.Semaphore | None = None
        self.fail_with: list[int] = []
        self.events_first: list[Payload] = []
        self.event_after_first: Payload | None = None
        self.break_after: int | None = None
        self.dies_of: Callable[[Payload], bool] = lambda payload: False
        self.deaths = 0
        self.url = ""
        self.open = asyncio.Event()
        self.open.set()
        self.connections: set[Connection] = set()
        self._changed = asyncio.Condition()
        self._step = asyncio.Event()

    def pause(self) -> None:
        """Hold new and running requests, as an update does."""
        self.open.clear()

    def resume(self, version: str) -> None:
        """Go on with the weights ``version``."""
        self.version = version
        self.open.set()

    async def wait_for(self, condition: Callable[[], bool]) -> None:
        """Return once ``condition`` holds; it is looked at whenever the engine's state changes.

        Raises:
            AssertionError: when it does not within `WAIT_SECONDS`; says what the engine has seen.
        """
        try:
            async with asyncio.timeout(WAIT_SECONDS), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            seen = f"{len(self.requests)} requests, {sorted(self.running)} running, {self.aborted} aborted"
            raise AssertionError(f"not so after {WAIT_SECONDS:g} s: the engine saw {seen}") from None

    async def answer(self, path: str, headers: Mapping[str, str], payload: Payload) -> Answer:
        """Answer one request."""
        if path in ("/generate", "/v1/chat/completions"):
            self.requests.append(payload)
            self.routing_keys.append(headers.get("x-smg-routing-key"))
            await self._notify()
            if self.fail_with:
                status = self.fail_with.pop(0)
                return status, {"error": {"message": f"failed with {status}"}}
            if path != "/generate":
                return 200, self.completed(payload)
            return self.stream(payload) if payload.get("stream") else (200, await self.whole(payload))
        if path == "/abort_request":
            self.aborted.append(payload["rid"])
            self.running.discard(payload["rid"])
            await self._notify()
        routes = {
            "/workers": {"workers": [{"url": self.url, "worker_type": "regular", "is_healthy": True}]},
            "/list_workers": {"urls": [self.url]},
            "/v1/models": {"object": "list", "data": [{"id": "policy", "object": "model"}]},
        }
        if path.startswith("/v1/") and path not in routes:
            return 404, {"detail": "Not Found"}
        return 200, routes.get(path, {})

    async def whole(self, payload: Payload) -> Payload:
        """Return a reply that is not streamed, with the scores of its prompt."""
        ids, finish = self._reply(payload)
        if self.aborting:
            ids, finish = ids[:ABORTED_TOKENS], {"type": "abort"}
        prompt, start = prompt_of(payload), payload.get("logprob_start_len", 0)
        scored = [[None, token, None] if n == 0 else [-0.5, token, None] for n, token in enumerate(prompt)]
        top = [None if n == 0 else [[-0.5, token, None]] for n, token in enumerate(prompt)]
        meta = self._meta(payload, ids, 0, finish)
        meta |= {"input_token_logprobs": scored[start:], "input_top_logprobs": top[start:]}
        return {"text": self.text_of(ids), "output_ids": ids, "meta_info": meta}

    async def stream(self, payload: Payload) -> AsyncIterator[bytes]:
        """Yield the events of a reply."""
        rid, lives = payload.get("rid", f"unnamed-{len(self.requests)}"), self.deaths
        reply, finish = self._reply(payload)
        if self.dies_of(payload):
            self.deaths += 1
            return
        self.running.add(rid)
        await self._notify()
        try:
            if self.events_first:
                yield event(self.events_first.pop(0)) + DONE
                return
            spans: list[dict[str, Any]] = []
            for start in range(0, len(reply), self.chunk_tokens):
                await self._turn()
                if self.deaths != lives:
                    return
                end = min(start + self.chunk_tokens, len(reply))
                if spans and spans[-1]["version"] == self.version:
                    spans[-1]["end"] = end
                else:
                    spans.append({"version": self.version, "start": start, "end": end})
                last, first = end == len(reply), 0 if self.cumulative else start
                ids = reply[first:end]
                meta = self._meta(payload, ids, first, finish if last else None, end)
                if last:
                    meta["weight_versions"] = spans
                yield event({"text": self.text_of(ids), "output_ids": ids, "meta_info": meta})
                if self.event_after_first is not None:
                    yield event(self.event_after_first) + DONE
                    return
                if self.break_after is not None and end >= self.break_after and not last:
                    self.break_after = None
                    return
            yield DONE
        finally:
            self.running.discard(rid)
            await self._notify()

    def completed(self, payload: Payload) -> Payload:
        """Return an OpenAI chat completion whose prompt is the text of its messages."""
        ids = list(self.script(list(orjson.dumps(payload.get("messages")))))
        text = self.text_of(ids)
        content = [{"token": letter, "logprob": -0.25, "top_logprobs": []} for letter in text]
        message = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
        finish = "abort" if self.aborting else "stop"
        choice = {"index": 0, "message": message, "finish_reason": finish, "logprobs": {"content": content}}
        usage = {"prompt_tokens": 1, "completion_tokens": len(ids), "total_tokens": 1 + len(ids)}
        return {"id": "stand-in", "object": "chat.completion", "model": "policy", "choices": [choice], "usage": usage}

    @contextlib.asynccontextmanager
    async def serving(self, port: int = 0) -> AsyncIterator[str]:
        """Serve on a loopback port, 0: a free one; yield the URL."""
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(self), "127.0.0.1", port, backlog=1024)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        pace = asyncio.create_task(self._pace()) if self.step_seconds else None
        try:
            yield self.url
        finally:
            if pace is not None:
                pace.cancel()
            server.close()
            await asyncio.gather(*(connection.close() for connection in list(self.connections)))

    async def serve_forever(self, port: int) -> None:
        """Serve on ``port`` until the process ends."""
        async with self.serving(port):
            await asyncio.Event().wait()

    def _reply(self, payload: Payload) -> tuple[list[int], dict[str, Any]]:
        """Return ids and finish reason of a reply, by the script and the sampling parameters."""
        parameters = payload.get("sampling_params") or {}
        reply = list(self.script(prompt_of(payload)))
        limit, stops = parameters.get("max_new_tokens", len(reply)), set(parameters.get("stop_token_ids") or ())
        reply = reply[: next((n + 1 for n, token in enumerate(reply) if token in stops), len(reply))]
        finish = {"type": "stop", "matched": reply[-1] if reply else None}
        if parameters.get("ignore_eos"):
            reply = (reply * (limit // max(1, len(reply)) + 1))[: limit + 1]
        if len(reply) > limit:
            reply, finish = reply[:limit], {"type": "length", "length": limit}
        return reply, finish

    def _meta(
        self, payload: Payload, ids: Sequence[int], first: int, finish: dict[str, Any] | None, end: int | None = None
    ) -> dict[str, Any]:
        """Return ``meta_info`` of the tokens that begin at position ``first``."""
        meta: dict[str, Any] = {
            "id": payload.get("rid", "stand-in"),
            "prompt_tokens": self.prompt_tokens(payload),
            "completion_tokens": len(ids) if end is None else end,
            "cached_tokens": 3,
            "output_token_logprobs": [[logprob_of(first + n, token), token, None] for n, token in enumerate(ids)],
            "weight_version": self.version,
            "finish_reason": finish,
        }
        if count := payload.get("top_logprobs_num", 0):
            meta["output_top_logprobs"] = [likeliest(first + n, token, count) for n, token in enumerate(ids)]
        return meta

    async def _turn(self) -> None:
        """Wait until the next token may be sent."""
        if self.step_seconds:
            await self._step.wait()
        else:
            await asyncio.sleep(0)
        if self.token_gate is not None:
            await self.token_gate.acquire()
        await self.open.wait()

    async def _pace(self) -> None:
        """Take decode steps for ever; each lets every running request send one token."""
        due = time.monotonic()
        while True:
            due = max(due + self.step_seconds, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            await self.open.wait()
            step, self._step = self._step, asyncio.Event()
            step.set()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection of an engine, one request at a time; it costs far less than a web framework."""

    def __init__(self, engine: StandInEngine) -> None:
        self._engine = engine
        self._buffer = b""
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the connection."""
        self._transport = cast("asyncio.Transport", transport)
        self._engine.connections.add(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the answer under way."""
        self._engine.connections.discard(self)
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    async def close(self) -> None:
        """Close the connection, and wait for the end of its answer."""
        self._transport.abort()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def pause_writing(self) -> None:
        """Hold the stream: its reader has fallen behind."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Go on with the stream."""
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        """Collect a request, and begin to answer it once it is whole."""
        self._buffer += data
        head, result, rest = self._buffer.partition(b"\r\n\r\n")
        if not result:
            return
        first, *lines = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", 0))
        if len(rest) >= length:
            body, self._buffer = rest[:length], rest[length:]
            self._task = asyncio.ensure_future(self._answer(first.split(" ")[1], headers, body))

    async def _answer(self, target: str, headers: Mapping[str, str], body: bytes) -> None:
        path, query = urlsplit(target).path, urlsplit(target).query
        answer = await self._engine.answer(path, headers, orjson.loads(body) if body else dict(parse_qsl(query)))
        if isinstance(answer, tuple):
            value = orjson.dumps(answer[1])
            self._transport.write(WHOLE_HEAD % (answer[0], len(value)) + value)
            return
        self._transport.write(STREAM_HEAD)
        async with contextlib.aclosing(cast("Any", answer)) as parts:
            async for part in parts:
                self._transport.write(b"%x\r\n%b\r\n" % (len(part), part))
                await self._writable.wait()
        self._transport.write(b"0\r\n\r\n")


def prompt_of(payload: Payload) -> list[int]:
    """Return the ids of a prompt; a text has those of its characters."""
    return list(payload.get("input_ids") or map(ord, payload.get("text") or ""))


def letters_engine() -> StandInEngine:
    """Return an engine whose replies are letters that depend on the prompt and on the number of earlier requests."""
    engine = StandInEngine(
        lambda prompt: [
            FIRST_LETTER + (len(prompt) + 31 * len(engine.requests) + 7 * position) % LETTERS
            for position in range(REPLY_TOKENS)
        ]
    )
    engine.text_of = lambda ids: "".join(map(chr, ids))
    return engine


@contextlib.contextmanager
def in_thread(engine: StandInEngine) -> Iterator[str]:
    """Serve from a thread of its own until the block ends; yield the URL."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="stand-in engine", daemon=True)
    thread.start()
    serving = engine.serving()
    try:
        yield asyncio.run_coroutine_threadsafe(serving.__aenter__(), loop).result()
    finally:
        asyncio.run_coroutine_threadsafe(serving.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
