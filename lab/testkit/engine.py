"""A policy engine without a model: SGLang's `/generate` on a loopback port, with replies that the test decides.

Guarantees: the wire format is the one of SGLang 0.5 with incremental streaming; ids come from the script, log-probabilities
are a pure function of position and id. Owns the server task; use it as an async context manager.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, StreamingResponse

Script = Callable[[list[int]], Sequence[int]]
GRACE_SECONDS = 2.0
WAIT_SECONDS = 20.0


def logprob_of(position: int, token: int) -> float:
    """Return the log-probability that the engine gives ``token`` at ``position`` of a reply."""
    return -((token * 7919 + position * 104729) % 1000 + 1) / 257.0


def likeliest(position: int, token: int, count: int) -> list[list[Any]]:
    """Return the ``count`` likeliest tokens where ``token`` was sampled: itself, its successors, one impossible token."""
    found: list[list[Any]] = [[logprob_of(position, token) - n, token + n, None] for n in range(count - 1)]
    return [*found, [-3.4e38, 0, None]]


class MockEngine:
    """State of one stand-in engine; tests change it between and during requests."""

    def __init__(self, script: Script) -> None:
        """Bind the engine.

        Args:
            script: prompt ids to reply ids. A request that goes on from delivered tokens gets the rest of them.
        """
        self.script = script
        self.version = "1"
        self.requests: list[dict[str, Any]] = []
        self.routing_keys: list[str | None] = []
        self.aborted: list[str] = []
        self.running: set[str] = set()
        self.cumulative = False
        self.prompt_tokens: Callable[[dict[str, Any]], int] = lambda payload: len(payload["input_ids"])
        self.chunk_tokens = 1
        self.fail_with: list[int] = []
        self.events_first: list[dict[str, Any]] = []
        self.break_after: int | None = None
        self.event_after_first: dict[str, Any] | None = None
        self.dies_of: Callable[[dict[str, Any]], bool] = lambda payload: False
        self.deaths = 0
        self.open = asyncio.Event()
        self.open.set()
        self.token_gate: asyncio.Semaphore | None = None
        self.changed = asyncio.Condition()
        self.app = self._build()
        self.url = ""

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
            async with asyncio.timeout(WAIT_SECONDS), self.changed:
                await self.changed.wait_for(condition)
        except TimeoutError:
            seen = f"{len(self.requests)} requests, {sorted(self.running)} running, {self.aborted} aborted"
            raise AssertionError(f"not so after {WAIT_SECONDS:g} s: the engine saw {seen}") from None

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    def _build(self) -> FastAPI:
        app = FastAPI()

        @app.post("/generate")
        async def generate(request: Request) -> Any:
            payload = json.loads(await request.body())
            self.requests.append(payload)
            self.routing_keys.append(request.headers.get("x-smg-routing-key"))
            await self._notify()
            if self.fail_with:
                status = self.fail_with.pop(0)
                return JSONResponse({"error": {"message": f"failed with {status}"}}, status)
            return StreamingResponse(self._stream(payload), media_type="text/event-stream")

        @app.post("/abort_request")
        async def abort(request: Request) -> dict[str, Any]:
            rid = json.loads(await request.body())["rid"]
            self.aborted.append(rid)
            self.running.discard(rid)
            await self._notify()
            return {}

        return app

    async def _stream(self, payload: dict[str, Any]) -> AsyncIterator[str]:
        rid, prompt = payload.get("rid", f"unnamed-{len(self.requests)}"), payload["input_ids"]
        parameters = payload["sampling_params"]
        reply, limit = list(self.script(prompt)), parameters["max_new_tokens"]
        stops = set(parameters.get("stop_token_ids", ()))
        reply = reply[: next((n + 1 for n, token in enumerate(reply) if token in stops), len(reply))]
        finish = {"type": "stop", "matched": reply[-1] if reply else None}
        if parameters.get("ignore_eos"):
            reply = (reply * (limit // max(1, len(reply)) + 1))[: limit + 1]
        if len(reply) > limit:
            reply, finish = reply[:limit], {"type": "length", "length": limit}
        self.running.add(rid)
        lives = self.deaths
        if self.dies_of(payload):
            self.deaths += 1
            self.running.discard(rid)
            await self._notify()
            return
        await self._notify()
        if self.events_first:
            yield f"data: {json.dumps(self.events_first.pop(0))}\n\ndata: [DONE]\n\n"
            return
        try:
            spans: list[dict[str, Any]] = []
            for start in range(0, len(reply), self.chunk_tokens):
                if self.token_gate is not None:
                    await self.token_gate.acquire()
                await self.open.wait()
                if self.deaths != lives:
                    return
                end = min(start + self.chunk_tokens, len(reply))
                if spans and spans[-1]["version"] == self.version:
                    spans[-1]["end"] = end
                else:
                    spans.append({"version": self.version, "start": start, "end": end})
                last = end == len(reply)
                top = payload.get("top_logprobs_num", 0)
                count = self.prompt_tokens(payload)
                yield self._event(reply, start, end, spans if last else None, finish if last else None, top, count)
                if self.event_after_first is not None:
                    yield f"data: {json.dumps(self.event_after_first)}\n\ndata: [DONE]\n\n"
                    return
                if self.break_after is not None and end >= self.break_after and not last:
                    self.break_after = None
                    return
            yield "data: [DONE]\n\n"
        finally:
            self.running.discard(rid)
            await self._notify()

    def _event(
        self,
        reply: list[int],
        start: int,
        end: int,
        spans: list[dict[str, Any]] | None,
        finish: dict[str, Any] | None,
        top: int,
        prompt_tokens: int,
    ) -> str:
        first = 0 if self.cumulative else start
        ids = reply[first:end]
        meta: dict[str, Any] = {
            "prompt_tokens": prompt_tokens,
            "completion_tokens": end,
            "output_token_logprobs": [[logprob_of(first + n, token), token, None] for n, token in enumerate(ids)],
            "weight_version": self.version,
            "finish_reason": finish,
            "cached_tokens": 3,
        }
        if top:
            meta["output_top_logprobs"] = [likeliest(first + n, token, top) for n, token in enumerate(ids)]
        if spans:
            meta["weight_versions"] = spans
        return f"data: {json.dumps({'text': '', 'output_ids': ids, 'meta_info': meta})}\n\n"


class _Server(uvicorn.Server):
    """Ends as soon as it is told to; uvicorn's own looks ten times a second, which is most of what a small test takes."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.end = asyncio.Event()

    def install_signal_handlers(self) -> None:
        """Leave the signals to the test runner."""

    async def main_loop(self) -> None:
        """Serve until `end` is set."""
        await self.on_tick(0)
        await self.end.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close what listens, let answers under way end for `GRACE_SECONDS`, then end the application."""
        for listener in [*self.servers, *(sockets or [])]:
            listener.close()
        state = self.server_state
        for connection in list(state.connections):
            connection.shutdown()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GRACE_SECONDS):
                while state.connections or state.tasks:
                    await asyncio.sleep(0.001)
        for task in state.tasks:
            task.cancel()
        await self.lifespan.shutdown()


@contextlib.asynccontextmanager
async def serve(app: Any) -> AsyncIterator[str]:
    """Serve an ASGI application on a free loopback port; yield its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="warning", lifespan="on", ws="none")
    server = _Server(config)
    task = asyncio.create_task(server._serve([listener]))
    try:
        while not server.started:
            if task.done():
                task.result()
                raise RuntimeError("the server ended before it served")
            await asyncio.sleep(0.005)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.end.set()
        await task
        listener.close()


@contextlib.asynccontextmanager
async def mock_engine(script: Script) -> AsyncIterator[MockEngine]:
    """Serve a stand-in engine."""
    engine = MockEngine(script)
    async with serve(engine.app) as url:
        engine.url = url
        yield engine
