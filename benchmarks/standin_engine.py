"""A policy engine that costs nothing: SGLang's `/generate` with a fixed reply, in a process of its own.

`python -m benchmarks.standin_engine --port P --reply IDS --step-ms 10`. It is `slime.contract.engine` with a clock: every
running request gets one token per decode step; `--step-ms 0` sends as fast as the reader reads. `/v1/chat/completions`
streams the same reply in OpenAI's format for proxies that want it.

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
from collections.abc import AsyncIterator, Mapping
from typing import Any

import uvloop

from groundwork.process import watch_lifeline
from slime.contract.engine import DONE, Answer, Payload, StandInEngine, event


class TimedEngine(StandInEngine):
    """Gives every request one reply, and notes when each came, had its first token and ended."""

    def __init__(self, ids: list[int], texts: list[str], step_seconds: float) -> None:
        super().__init__(lambda prompt: ids, step_seconds)
        text = dict(zip(ids, texts, strict=True))
        self.text_of = lambda given: "".join(text[token] for token in given)
        self._numbers = itertools.count()
        self._records: list[tuple[str, int, int, int]] = []

    async def answer(self, path: str, headers: Mapping[str, str], payload: Payload) -> Answer:
        """Answer one request."""
        self.requests.clear()
        self.routing_keys.clear()
        if path == "/records":
            records, self._records = self._records, []
            return 200, records
        if path == "/stall":
            started = time.monotonic()
            self.pause()
            await asyncio.sleep(float(payload["ms"]) / 1000)
            self.resume(self.version)
            return 200, {"ms": (time.monotonic() - started) * 1000}
        if path == "/v1/chat/completions" and payload.get("stream"):
            return self._chunks(payload)
        return await super().answer(path, headers, payload)

    async def stream(self, payload: Payload) -> AsyncIterator[bytes]:
        """Yield the events of a reply, and note its times."""
        arrival, first = time.monotonic_ns(), 0
        async for part in super().stream(payload):
            first = first or time.monotonic_ns()
            yield part
        self._records.append((payload["rid"], arrival, first, time.monotonic_ns()))

    async def _chunks(self, payload: Payload) -> AsyncIterator[bytes]:
        """Yield the reply as OpenAI's chunks."""
        rid = f"chatcmpl-{next(self._numbers):032x}"
        limit = payload.get("max_tokens") or len(self.script([]))
        request = {"rid": rid, "input_ids": [], "sampling_params": {"max_new_tokens": limit}}
        head = {"id": rid, "object": "chat.completion.chunk", "created": 1, "model": "policy"}

        def chunk(delta: dict[str, Any], finish: str | None) -> bytes:
            choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
            return event({**head, "choices": [choice]})

        ids = iter(self.script([]))
        async for part in self.stream(request):
            if part == DONE:
                yield chunk({}, "stop") + DONE
            else:
                yield chunk({"content": self.text_of([next(ids)])}, None)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.standin_engine", description=__doc__)
    parser.add_argument("--port", type=int, required=True, help="loopback port")
    parser.add_argument("--reply", required=True, help='JSON: [[id, "text"], ...], the tokens of every reply')
    parser.add_argument("--step-ms", type=float, default=10.0, help="decode step; 0: no pace (default: %(default)s)")
    arguments = parser.parse_args()
    watch_lifeline()
    reply = json.loads(arguments.reply)
    engine = TimedEngine([item[0] for item in reply], [item[1] for item in reply], arguments.step_ms / 1000)
    uvloop.run(engine.serve_forever(arguments.port))


if __name__ == "__main__":
    main()
