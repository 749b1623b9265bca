"""A light load client: closed-loop connections with little overhead, in a process of its own.

`python -m benchmarks.load < SPEC.json > RESULT.json`, see `Spec`. Each connection sends a request, reads the reply to its
end and sends the next. Conversations have three turns, so that most requests carry the reply before them back.

Guarantees: times are ``CLOCK_MONOTONIC`` nanoseconds taken when the bytes arrive; a reply that is not complete, or not
HTTP 200, is an error and not a figure.
"""

from __future__ import annotations

import asyncio
import math
import re
import sys
import time
from dataclasses import asdict, dataclass, field
from zlib import crc32

import orjson
import uvloop

TURNS = 3
FIRST_TOKEN = re.compile(rb'"(?:content|text|delta)": ?"[^"]|"output_ids": ?\[\d')
NAME = re.compile(rb'x-request-id: ?(\S+)|"id": ?"([^"]+)"')
"""Of a request at the engine: the gateway's is in a header, whatever the reply's id is in its dialect."""
HEALTH_SECONDS = 0.025


@dataclass
class Spec:
    """What to send.

    Attributes:
        port: of the server on this machine.
        path: ``/generate``, or of one of the gateway's dialects.
        connections: how many at a time.
        seconds: after this long no new request begins.
        bodies: JSON objects of the turns of a conversation, in order. The assistant messages that are null are filled
            with what was answered.
        reply: texts of the tokens of every reply, the first of which are sent, so many as were asked for.
        stream: whether replies are streamed.
        health: whether ``/healthz`` is asked meanwhile, 40 times a second.
        sessions: when not 0, exactly so many conversations are held, whatever ``seconds`` says.
        prefix: of the session ids, so that every run has its own.
    """

    port: int
    path: str
    connections: int
    seconds: float
    bodies: list[dict]
    reply: list[str]
    stream: bool = True
    health: bool = False
    sessions: int = 0
    prefix: str = field(default_factory=lambda: f"load-{time.monotonic_ns():x}")


@dataclass
class Result:
    """What came back: per request name, start, first token, end and tokens; ``/healthz`` seconds; errors."""

    requests: list[tuple[str, int, int, int, int]] = field(default_factory=list)
    health: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)


class Exchange(asyncio.Protocol):
    """One connection; `ask` sends a request and returns its (name, start, first token, end)."""

    def __init__(self) -> None:
        self._waiter: asyncio.Future | None = None
        self._head, self._tail, self._first, self._start, self._length = b"", b"", 0, 0, -1
        self._received = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(ConnectionError(f"closed after {self._head[:200]!r}"))

    async def ask(self, request: bytes) -> tuple[str, int, int, int]:
        """Send a request and read its reply.

        Raises:
            ConnectionError: when the reply is not complete or its status is not 200.
        """
        self._head, self._tail, self._first, self._length, self._received = b"", b"", 0, -1, 0
        self._waiter = asyncio.get_running_loop().create_future()
        self._start = time.monotonic_ns()
        self.transport.write(request)  # type: ignore[attr-defined]
        return await self._waiter

    def data_received(self, data: bytes) -> None:
        self._received += len(data)
        if not self._first:
            self._head += data
            if self._length < 0 and b"\r\n\r\n" in self._head:
                match = re.search(rb"content-length: (\d+)", self._head, re.IGNORECASE)
                self._length = int(match.group(1)) + self._head.index(b"\r\n\r\n") + 4 if match else 0
            if FIRST_TOKEN.search(self._head):
                self._first = time.monotonic_ns()
        self._tail = (self._tail + data)[-8:] if len(data) < 8 else data[-8:]
        done = self._received >= self._length if self._length > 0 else self._tail.endswith(b"\r\n0\r\n\r\n")
        if done and self._waiter is not None and not self._waiter.done():
            self._finish()

    def _finish(self) -> None:
        assert self._waiter is not None
        end = time.monotonic_ns()
        if not self._head.startswith(b"HTTP/1.1 200"):
            self._waiter.set_exception(ConnectionError(f"answered {self._head[:300]!r}"))
            return
        name = NAME.search(self._head)
        found = (name.group(1) or name.group(2)).decode() if name else ""
        self._waiter.set_result((found, self._start, self._first or end, end))


async def connect(port: int) -> Exchange:
    """Return an open connection to a server of this machine."""
    _, protocol = await asyncio.get_running_loop().create_connection(Exchange, "127.0.0.1", port)
    return protocol


def reply_tokens(most: int, *numbers: int) -> int:
    """Return the length of a reply, between half of ``most`` and all of it: people do not finish in step."""
    return most - crc32(repr(numbers).encode()) % (most // 2 + 1)


def fill(spec: Spec, body: dict, tokens: int, answers: list[str], name: str) -> dict:
    """Return what is sent for a turn whose reply has ``tokens`` tokens, after ``answers``."""
    if "input_ids" in body:
        sampling = {**body["sampling_params"], "max_new_tokens": tokens}
        return {**body, "sampling_params": sampling, "stream": spec.stream, "rid": name}
    bound = {"max_output_tokens" if "input" in body else "max_tokens": tokens}
    said, filled = iter(answers), dict[str, list[dict]]()
    for key in {"messages", "input"} & body.keys():
        filled[key] = [{**each, "content": next(said)} if each["content"] is None else each for each in body[key]]
    return {**body, **filled, **bound, "stream": spec.stream}


def http(path: str, body: bytes, session: str) -> bytes:
    """Return a POST as bytes."""
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\nx-session-id: {session}\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


async def converse(spec: Spec, worker: int, until: float, sessions: list[int], result: Result) -> None:
    """Hold one conversation after the other over one connection."""
    exchange = await connect(spec.port)
    number = 0
    try:
        while time.monotonic() < until or spec.sessions:
            if spec.sessions:
                if not sessions:
                    return
                number = sessions.pop()
            session = f"{spec.prefix}-{worker}-{number}"
            answers: list[str] = []
            for turn, body in enumerate(spec.bodies):
                tokens = reply_tokens(len(spec.reply), worker, number, turn)
                request = http(spec.path, orjson.dumps(fill(spec, body, tokens, answers, f"{session}-{turn}")), session)
                answers.append("".join(spec.reply[:tokens]))
                result.requests.append((*await exchange.ask(request), tokens))
            number += 1
    except (ConnectionError, OSError) as error:
        result.errors.append(str(error))
    finally:
        exchange.transport.close()


async def watch_health(spec: Spec, until: float, result: Result) -> None:
    """Ask ``/healthz`` at fixed times and count seconds from then on; what falls due before an answer is left out."""
    exchange = await connect(spec.port)
    due = time.monotonic()
    while due < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        await exchange.ask(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        result.health.append(time.monotonic() - due)
        due += HEALTH_SECONDS * max(1, math.ceil((time.monotonic() - due) / HEALTH_SECONDS))
    exchange.transport.close()


async def run(spec: Spec) -> Result:
    """Put the load on the server; return what came back."""
    result = Result()
    until = time.monotonic() + spec.seconds
    sessions = list(range(spec.sessions))
    work = [converse(spec, worker, until, sessions, result) for worker in range(spec.connections)]
    if spec.health:
        work.append(watch_health(spec, until, result))
    await asyncio.gather(*work)
    return result


def main() -> None:
    """Read the specification from standard input, write the result to standard output."""
    spec = Spec(**orjson.loads(sys.stdin.buffer.read()))
    sys.stdout.buffer.write(orjson.dumps(asdict(uvloop.run(run(spec)))))


if __name__ == "__main__":
    main()
