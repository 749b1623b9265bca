"""A stand-in for vLLM's server, written from its documentation: token-in-token-out requests, pause and resume, adapters, reloads.

Its script, its log-probabilities and its decode steps are those of `slime.contract.engine.StandInEngine`, so that the two engines
can be compared. Bytes leave in pieces of ``piece`` bytes, which cut events and characters anywhere.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from slime.backends.vllm_utils.translator import unless_gone
from slime.contract.engine import Script, logprob_of

Change = Callable[[dict[str, Any]], dict[str, Any]]


class StandInVLLM:
    """One server; whoever holds it changes its attributes.

    Attributes:
        requests: bodies of `/inference/v1/generate`.
        told: path and body of the other requests, in order.
        running: names of requests under way.
        statuses: of the next requests, each with an error.
        change: applied to each event or whole answer before it leaves.
        break_after: a stream ends after so many events, as if the server had gone.
        step: called before each token.
    """

    def __init__(self, script: Script, piece: int = 7) -> None:
        self.script, self.piece = script, piece
        self.version = "default"
        self.requests: list[dict[str, Any]] = []
        self.told: list[tuple[str, Any]] = []
        self.running: set[str] = set()
        self.aborted: set[str] = set()
        self.adapters: set[str] = set()
        self.statuses: list[int] = []
        self.change: Change = lambda event: event
        self.break_after: int | None = None
        self.step: Callable[[], None] = lambda: None
        self.open = asyncio.Event()
        self.open.set()
        self.changed = asyncio.Condition()

    def app(self) -> Starlette:
        """Return the web application."""
        told = (
            *(
                "/pause",
                "/resume",
                "/reset_prefix_cache",
                "/collective_rpc",
                "/update_weight_version",
                "/abort_requests",
            ),
            *("/v1/load_lora_adapter", "/v1/unload_lora_adapter"),
        )
        return Starlette(
            routes=[
                Route("/health", lambda request: Response()),
                Route("/inference/v1/generate", self._generate, methods=["POST"]),
                *(Route(path, self._take, methods=["POST"]) for path in told),
            ]
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        """Return once ``condition`` holds."""
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(condition)

    async def _take(self, request: Request) -> Response:
        body = orjson.loads(await request.body() or b"null")
        path = request.url.path
        self.told.append((path + (f"?{request.url.query}" if request.url.query else ""), body))
        match path:
            case "/pause":
                self.open.clear()
            case "/resume":
                self.open.set()
            case "/update_weight_version":
                self.version = body["new_version"]
            case "/abort_requests":
                self.aborted |= set(body["request_ids"])
            case "/v1/load_lora_adapter" if body["lora_name"] in self.adapters:
                return JSONResponse({"error": {"message": "has already been loaded", "code": 400}}, 400)
            case "/v1/load_lora_adapter":
                self.adapters.add(body["lora_name"])
            case "/v1/unload_lora_adapter":
                self.adapters.remove(body["lora_name"])
        await self._notify()
        return JSONResponse({"success": True})

    async def _generate(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        self.requests.append(body)
        await self._notify()
        if self.statuses:
            status = self.statuses.pop(0)
            return JSONResponse({"error": {"message": f"failed with {status}", "code": status}}, status)
        if "model" in body and body["model"] not in self.adapters:
            return JSONResponse(
                {"error": {"message": f"The model `{body['model']}` does not exist.", "code": 404}}, 404
            )
        if body["stream"]:
            return StreamingResponse(self._pieces(body), media_type="text/event-stream")
        return await unless_gone(request, self._whole(body))

    async def _whole(self, body: dict[str, Any]) -> Response:
        answer: dict[str, Any] = {}
        async for event in self._events(body):
            self._join(answer, event)
        asked = body["sampling_params"].get("prompt_logprobs")
        prompt = body["token_ids"]
        if asked is not None:
            others = {
                str(10_000 + n): {"logprob": -0.25 - n, "rank": n + 1, "decoded_token": "x"} for n in range(asked)
            }
            scored = [
                {str(token): {"logprob": -0.5, "rank": 9, "decoded_token": "x"}, **others} for token in prompt[1:]
            ]
            answer["prompt_logprobs"] = [None, *scored]
        for choice in answer["choices"]:
            choice["text"] = "".join(chr(token) for token in choice["token_ids"])
            for entry in (choice["logprobs"] or {}).get("content", []):
                for one in (entry, *entry["top_logprobs"]):
                    one["token"] = f"token_id:{one.pop('token_id')}"
        return JSONResponse(self.change(answer))

    @staticmethod
    def _join(answer: dict[str, Any], event: dict[str, Any]) -> None:
        """Add a stream's event to a whole answer."""
        if not answer:
            answer |= event
        elif not event["choices"]:
            answer["usage"] = event["usage"]
        else:
            old, new = answer["choices"][0], event["choices"][0]
            old["token_ids"] += new["token_ids"]
            if new["logprobs"]:
                old["logprobs"]["content"] += new["logprobs"]["content"]
            old |= {name: new[name] for name in ("finish_reason", "stop_reason", "weight_versions")}

    async def _pieces(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        count, rest = 0, b""
        async for event in self._events(body):
            rest += b"data: " + orjson.dumps(self.change(event)) + b"\n\n"
            while len(rest) >= self.piece:
                yield rest[: self.piece]
                rest = rest[self.piece :]
            count += 1
            if count == self.break_after:
                yield rest
                return
        yield rest + b"data: [DONE]\n\n"

    async def _events(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        parameters, name = body["sampling_params"], f"generate-tokens-{body['request_id']}"
        reply = list(self.script(body["token_ids"]))
        finish, limit = "stop", parameters["max_tokens"]
        if len(reply) > limit:
            reply, finish = reply[:limit], "length"
        spans: list[dict[str, Any]] = []
        self.running.add(name)
        await self._notify()
        try:
            for position, token in enumerate(reply):
                await asyncio.sleep(0)
                self.step()
                await self.open.wait()
                last = position + 1 == len(reply)
                if name in self.aborted:
                    finish, last = "abort", True
                if spans and spans[-1]["version"] == self.version:
                    spans[-1]["end"] = position + 1
                else:
                    spans.append({"version": self.version, "start": position, "end": position + 1})
                yield {
                    "request_id": name,
                    "usage": None,
                    "choices": [
                        self._choice(parameters, position, token, finish if last else None, spans if last else None)
                    ],
                }
                if last:
                    break
            total = {"prompt_tokens": len(body["token_ids"]), "prompt_tokens_details": {"cached_tokens": 3}}
            yield {"request_id": name, "usage": total, "choices": []}
        finally:
            self.running.discard(name)
            await self._notify()

    def _choice(
        self,
        parameters: dict[str, Any],
        position: int,
        token: int,
        finish: str | None,
        spans: list[dict[str, Any]] | None,
    ) -> dict[str, Any]:
        logprobs = None
        if (count := parameters.get("logprobs")) is not None:
            value = logprob_of(position, token)
            # The sampled token first, whatever its rank, then the likeliest ones.
            top = [{"token_id": token, "logprob": value}]
            top += [{"token_id": 10_000 + n, "logprob": value + 1 - n} for n in range(count - 1)]
            logprobs = {"content": [{"token_id": token, "logprob": value, "top_logprobs": top}]}
        return {
            "index": 0,
            "token_ids": [token],
            "logprobs": logprobs,
            "finish_reason": finish,
            "stop_reason": None,
            "weight_versions": spans,
        }

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()
