"""A policy engine that costs nothing: SGLang's `/generate` with a fixed reply, in a process of its own.

`python -m benchmarks.standin_engine --port P --reply IDS --step-ms 10`. Every running request gets one token per decode
step, all of them in the same step, as a batching engine does; `--step-ms 0` sends as fast as the reader reads. The wire
format is that of SGLang 0.5 with incremental streaming; `/v1/chat/completions` gives the same reply in OpenAI's format
for proxies that want it.

Guarantees: the time that a request spent here is known to the nanosecond (``GET /records``: arrival, first token, end,
by ``CLOCK_MONOTONIC``, which all processes of a machine share), so that a caller can tell its own time from the engine's.
``POST /stall?ms=50`` pauses decoding, as a weight update does, and answers with the pause it made in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import time
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import parse_qs, urlsplit

import orjson
import uvloop

from groundwork.process import watch_lifeline

STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
DONE = b"data: [DONE]\n\n"


@dataclass(slots=True, eq=False)
class Running:
    """A request that is being answered; ``sent`` tokens of ``total`` have left."""

    connection: Connection
    rid: str
    total: int
    chat: bool
    stream: bool
    arrival: int
    first: int = 0
    sent: int = 0


@dataclass
class Engine:
    """Decodes every running request by one token a step. Owns the table of requests."""

    ids: list[int]
    texts: list[str]
    step_seconds: float
    running: dict[str, Running] = field(default_factory=dict)
    records: list[tuple[str, int, int, int]] = field(default_factory=list)
    stalled_until: float = 0.0

    def __post_init__(self) -> None:
        self.events = [self._event(position, last=False) for position in range(len(self.ids))]
        self.last_events = [self._event(position, last=True) for position in range(len(self.ids))]
        self.chunks = [self._chunk({"content": text}, None) for text in self.texts]
        self.numbers = itertools.count()

    def _event(self, position: int, *, last: bool) -> bytes:
        """Return the event of one token up to the request's name."""
        token, count = self.ids[position], position + 1
        meta = {
            "finish_reason": {"type": "length", "length": count} if last else None,
            "prompt_tokens": 100,
            "weight_version": "1",
            "num_retractions": 0,
            "output_token_logprobs": [[-0.6931471824645996, token, None]],
            "reasoning_tokens": 0,
            "completion_tokens": count,
            "cached_tokens": 0,
        }
        if last:
            meta["weight_versions"] = [{"version": "1", "start": 0, "end": count}]
        body = {"text": self.texts[position], "output_ids": [token], "meta_info": {**meta, "id": ""}}
        return b"data: " + orjson.dumps(body).removesuffix(b'"}}')

    def _chunk(self, delta: dict, finish: str | None) -> bytes:
        """Return an OpenAI chunk after the request's name."""
        choices = [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
        body = orjson.dumps({"object": "chat.completion.chunk", "created": 1, "model": "policy", "choices": choices})
        return b'",' + body[1:] + b"\n\n"

    def add(self, request: Running) -> None:
        """Start a request."""
        self.running[request.rid] = request
        if request.stream:
            request.connection.write(STREAM_HEAD)
        if not self.step_seconds:
            asyncio.get_running_loop().call_soon(self._pump, request)

    def token(self, request: Running) -> None:
        """Send one token, and the end after the last."""
        if not request.sent:
            request.first = time.monotonic_ns()
        if request.chat:
            data = b'data: {"id":"' + request.rid.encode() + self.chunks[request.sent]
        else:
            events = self.last_events if request.sent + 1 == request.total else self.events
            data = events[request.sent] + request.rid.encode() + b'"}}\n\n'
        request.sent += 1
        last = request.sent == request.total
        if last:
            if request.chat:
                data += b'data: {"id":"' + request.rid.encode() + self._chunk({}, "stop")
            data += DONE
        if request.stream:
            request.connection.write(b"%x\r\n%b\r\n%b" % (len(data), data, b"0\r\n\r\n" if last else b""))
        elif last:
            request.connection.answer(self._whole(request))
        if last:
            self.running.pop(request.rid, None)
            request.connection.request = None
            self.records.append((request.rid, request.arrival, request.first, time.monotonic_ns()))

    def _whole(self, request: Running) -> dict:
        message = {"role": "assistant", "content": "".join(self.texts[: request.total])}
        choices = [{"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}]
        usage = {"prompt_tokens": 100, "completion_tokens": request.total, "total_tokens": 100 + request.total}
        return {
            "id": request.rid,
            "object": "chat.completion",
            "created": 1,
            "model": "policy",
            "choices": choices,
            "usage": usage,
        }

    def _pump(self, request: Running) -> None:
        """Send tokens while the reader reads; without a pace only."""
        if request.rid in self.running and request.connection.writable:
            self.token(request)
            if request.sent < request.total:
                asyncio.get_running_loop().call_soon(self._pump, request)

    def resume(self, request: Running) -> None:
        """Go on with a request whose reader had fallen behind."""
        if not self.step_seconds:
            self._pump(request)

    async def decode(self) -> None:
        """Take decode steps for ever."""
        due = time.monotonic()
        while self.step_seconds:
            due = max(due + self.step_seconds, time.monotonic(), self.stalled_until)
            await asyncio.sleep(due - time.monotonic())
            if time.monotonic() < self.stalled_until:
                continue
            for request in list(self.running.values()):
                self.token(request)

    async def stall(self, seconds: float) -> float:
        """Pause decoding; return how long it was paused, in seconds."""
        started = time.monotonic()
        self.stalled_until = started + seconds
        await asyncio.sleep(seconds)
        return time.monotonic() - started


class Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, one request at a time."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.request: Running | None = None
        self.writable = True
        self.buffer = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = cast("asyncio.Transport", transport).write

    def connection_lost(self, exc: Exception | None) -> None:
        self.writable = False
        if self.request is not None:
            self.engine.running.pop(self.request.rid, None)

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self.request is not None:
            self.engine.resume(self.request)

    def data_received(self, data: bytes) -> None:
        self.buffer += data
        head, found, rest = self.buffer.partition(b"\r\n\r\n")
        if not found:
            return
        lines = head.decode("latin-1").split("\r\n")
        length = next((int(line[15:]) for line in lines if line.lower().startswith("content-length:")), 0)
        if len(rest) >= length:
            self.buffer = rest[length:]
            self._handle(lines[0].split(" ")[1], rest[:length])

    def _handle(self, target: str, body: bytes) -> None:
        engine, path = self.engine, urlsplit(target).path
        if path in ("/generate", "/v1/chat/completions"):
            payload, chat = orjson.loads(body), path != "/generate"
            rid = f"chatcmpl-{next(engine.numbers):032x}" if chat else payload["rid"]
            limit = payload.get("max_tokens") if chat else payload["sampling_params"]["max_new_tokens"]
            self.request = Running(
                connection=self,
                rid=rid,
                total=min(len(engine.ids), limit or len(engine.ids)),
                chat=chat,
                stream=bool(payload.get("stream")),
                arrival=time.monotonic_ns(),
            )
            engine.add(self.request)
        elif path == "/abort_request":
            engine.running.pop(orjson.loads(body)["rid"], None)
            self.answer({})
        elif path == "/records":
            records, engine.records = engine.records, []
            self.answer(records)
        elif path == "/stall":
            seconds = float(parse_qs(urlsplit(target).query)["ms"][0]) / 1000
            task = asyncio.ensure_future(engine.stall(seconds))
            task.add_done_callback(lambda done: self.answer({"ms": done.result() * 1000}))
        else:
            self.answer({"object": "list", "data": [{"id": "policy", "object": "model"}]})

    def answer(self, value: object) -> None:
        """Send a whole JSON answer."""
        body = orjson.dumps(value)
        self.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )


async def serve(engine: Engine, port: int) -> None:
    """Serve until the process is ended."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Connection(engine), "127.0.0.1", port, backlog=1024)
    await asyncio.gather(server.serve_forever(), engine.decode())


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.standin_engine", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="loopback port")
    parser.add_argument("--reply", required=True, help='JSON: [[id, "text"], ...], the tokens of every reply')
    parser.add_argument("--step-ms", type=float, default=10.0, help="decode step; 0: no pace (default: %(default)s)")
    arguments = parser.parse_args()
    watch_lifeline()
    reply = json.loads(arguments.reply)
    engine = Engine([item[0] for item in reply], [item[1] for item in reply], arguments.step_ms / 1000)
    uvloop.run(serve(engine, arguments.port))


if __name__ == "__main__":
    main()
