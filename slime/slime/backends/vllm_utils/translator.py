"""SGLang's routes in front of one vLLM server: what gateway, judge, gate, practice, rollouts and the engine's actor call.

Guarantees:

* Requests and answers are those of `translation`. A request that vLLM would not answer as it says is a 400 that names why.
* With adapters, a request keeps the one it was admitted with: the one it names, or the newest of the version that the actor told
  last. So no reply mixes versions. A request for the base model gets an adapter of zeros: vLLM's CPU kernels give a request without
  an adapter that of another request in the same batch (log/vllm.md).
* With whole weights, vLLM's own spans say which version sampled each token. An event before the last one names the version at the
  moment when it was read.
* Leaving a request early aborts it in vLLM. A reply that breaks off in vLLM breaks off here, too.
* While generation is paused, requests wait; none is refused.

State: the adapters, the requests that run, the version. One event loop; vLLM is reached over a Unix socket that only its owner has.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import shutil
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import httpx
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from slime.backends.sglang_utils.server_hooks import IN_USE
from slime.backends.vllm_utils.translation import REQUEST_ID, Asked, Reply, Weights, to_vllm
from slime.exceptions import EngineError, UntranslatableError
from slime.weight_sync import BASE, adapter_version

GENERATE = "/inference/v1/generate"
ABSENT = "does not exist"
"""In the refusal to unload an adapter; `SGLangEngine` looks for it."""
DEFAULT_VERSION = "default"
POLL_SECONDS = 0.1
FOREIGN_FORM = (LookupError, AttributeError, TypeError, ValueError)
"""What `Reply` raises of an answer that is not in vLLM's format."""
T = TypeVar("T")


async def sse_bodies(parts: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield the bodies of server-sent events, however the bytes are cut; ends after ``[DONE]``.

    Raises:
        EngineError: the bytes end before it.
    """
    rest = b""
    async for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                body = line[5:].strip()
                if body == b"[DONE]":
                    return
                yield body
    raise EngineError("vLLM ended a stream before the reply was complete")


class Translator:
    """The routes; see the module."""

    def __init__(self, client: httpx.AsyncClient, folder: Path, *, model: str, ranks: int, adapters: bool) -> None:
        """Create the routes.

        Args:
            client: of vLLM's server.
            folder: for the adapters' files.
            model: what the server serves.
            ranks: its tensor-parallel ranks.
            adapters: whether it serves adapters.
        """
        self._client, self._folder = client, folder
        self._model, self._ranks, self._adapters = model, ranks, adapters
        self.version = DEFAULT_VERSION
        self._digests: dict[str, str] = {}
        self._newest: str | None = None
        self._users: Counter[str] = Counter()
        self._running: set[str] = set()
        self._open = asyncio.Event()
        self._open.set()
        self.ready = False

    def app(self) -> Starlette:
        """Return the web application."""
        posts: dict[str, Callable[[dict[str, Any]], Awaitable[Any]]] = {
            "/abort_request": self._abort,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/flush_cache": self._flush,
            "/update_weights_from_disk": self._update_from_disk,
            "/update_weight_version": self._tell_version,
            "/load_lora_adapter": self._load,
            "/unload_lora_adapter": self._unload,
        }
        gets: dict[str, Callable[[], dict[str, Any]]] = {
            "/model_info": lambda: {"model_path": self._model, "weight_version": self.version},
            "/server_info": lambda: {
                "model_path": self._model,
                "tp_size": self._ranks,
                "pp_size": 1,
                "backend": "vllm",
            },
            "/v1/loads": lambda: {"loads": [{"num_running_reqs": len(self._running), "num_waiting_reqs": 0}]},
            "/v1/models": lambda: {"object": "list", "data": [{"id": name} for name in (self._model, *self._digests)]},
        }
        return Starlette(
            routes=[
                Route("/generate", self._generate, methods=["POST"]),
                Route("/health", self._health),
                *(Route(path, _posted(function), methods=["POST"]) for path, function in posts.items()),
                *(Route(path, _got(function)) for path, function in gets.items()),
            ]
        )

    async def reach(self) -> None:
        """Return once the server answers."""
        while True:
            with contextlib.suppress(httpx.TransportError):
                if (await self._client.get("/health")).status_code == 200:
                    return
            await asyncio.sleep(POLL_SECONDS)

    async def begin(self, base: Path | None, *, hold: bool) -> None:
        """Make the engine ready; ``base``: the folder of its adapter of zeros, ``hold``: begin paused."""
        if base is not None:
            await self._told("/v1/load_lora_adapter", {"lora_name": BASE, "lora_path": str(base)})
        if hold:
            await self._pause({"mode": "retract"})
        self.ready = True

    # Requests

    async def _generate(self, request: Request) -> Response:
        try:
            payload = orjson.loads(await request.body())
            asked = to_vllm(payload, uuid.uuid4().hex)
            work = self._answered(asked)
            return await unless_gone(request, work)
        except (UntranslatableError, orjson.JSONDecodeError, ValueError) as error:
            return _refusal(400, str(error))
        except httpx.TransportError as error:
            return _refusal(503, f"vLLM does not answer: {error!r}")

    async def _answered(self, asked: Asked) -> Response:
        name, weights = await self._admit(asked)
        self._running.add(asked.name)
        if name is not None:
            self._users[name] += 1
        streams = False
        try:
            body = asked.body if name is None else {**asked.body, "model": name}
            sent = self._client.build_request(
                "POST", GENERATE, content=orjson.dumps(body), headers={"content-type": "application/json"}
            )
            answer = await self._client.send(sent, stream=True)
            try:
                if answer.status_code != 200 or not asked.stream:
                    return _whole(answer.status_code, await answer.aread(), Reply(asked, weights))
                streams = True
                events = self._events(answer, asked, name, Reply(asked, weights))
                return StreamingResponse(events, media_type="text/event-stream")
            finally:
                if not streams:
                    await answer.aclose()
        finally:
            if not streams:
                self._ended(asked, name)

    async def _admit(self, asked: Asked) -> tuple[str | None, Weights]:
        """Return vLLM's name of the model that answers, None for its only one, and the version of what it says."""
        now = Weights(lambda: self.version)
        if not self._adapters:
            if asked.adapter is not None:
                raise UntranslatableError(f"lora_path {asked.adapter}: this engine serves whole weights, not adapters")
            return None, now
        name = asked.adapter
        if name is None:
            await self._open.wait()
            name = self._newest
        if name is None:
            return BASE, Weights(lambda: self.version, self.version)
        if name != BASE and name not in self._digests:
            raise UntranslatableError(
                f"lora_path {name}: the engine has no such adapter; it has {', '.join(self._digests) or 'none'}"
            )
        return name, Weights(
            lambda: self.version, BASE if name == BASE else adapter_version(name) or name, self._digests.get(name)
        )

    async def _events(
        self, answer: httpx.Response, asked: Asked, name: str | None, reply: Reply
    ) -> AsyncIterator[bytes]:
        try:
            async for body in sse_bodies(answer.aiter_raw()):
                event = _event(body, reply)
                if event is not None:
                    yield b"data: " + event + b"\n\n"
            if (rest := reply.rest()) is not None:
                yield b"data: " + orjson.dumps(rest) + b"\n\n"
            yield b"data: [DONE]\n\n"
        finally:
            self._ended(asked, name)
            await answer.aclose()

    def _ended(self, asked: Asked, name: str | None) -> None:
        self._running.discard(asked.name)
        if name is not None:
            self._users[name] -= 1

    async def _abort(self, body: dict[str, Any]) -> None:
        """Abort all requests, or those whose name begins with ``rid``; vLLM ends their answers with what they have."""
        prefix = REQUEST_ID + ("" if body.get("abort_all") else str(body["rid"]))
        if names := [name for name in self._running if name.startswith(prefix)]:
            await self._told("/abort_requests", {"request_ids": names})

    # Weights

    async def _pause(self, body: dict[str, Any]) -> None:
        """Hold all requests; ``retract`` lets running ones compute their prefix again with whatever weights come."""
        mode = body.get("mode", "retract")
        self._open.clear()
        kind = "abort" if mode == "abort" else "keep"
        await self._told(f"/pause?mode={kind}&clear_cache=false")
        if mode != "in_place":
            await self._flush({})

    async def _continue(self, body: dict[str, Any]) -> None:
        await self._told("/resume")
        self._open.set()

    async def _flush(self, body: dict[str, Any]) -> None:
        """Empty the prefix cache; while generation is paused also what running requests have in it."""
        running = "false" if self._open.is_set() else "true"
        done = await self._told(f"/reset_prefix_cache?reset_running_requests={running}")
        if not json.loads(done)["success"]:
            raise EngineError("vLLM did not empty its prefix cache, because requests use it; pause generation first")

    async def _update_from_disk(self, body: dict[str, Any]) -> None:
        """Load a folder; vLLM ends if it is not one, so it is looked at first."""
        folder = Path(body["model_path"])
        if not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
            raise EngineError(f"{folder} is not a Hugging Face folder with safetensors that this machine sees")
        await self._told("/collective_rpc", {"method": "load_folder", "kwargs": {"path": str(folder)}})
        if body.get("flush_cache"):
            await self._flush({})
        await self._tell_version({"new_version": body["weight_version"]})

    async def _tell_version(self, body: dict[str, Any]) -> None:
        """Let tokens of now on be of this version, and requests take its newest adapter."""
        version = str(body["new_version"])
        await self._told("/update_weight_version", {"new_version": version})
        self.version = version
        names = [name for name in self._digests if adapter_version(name) == version]
        self._newest = names[-1] if names else self._newest

    async def _load(self, body: dict[str, Any]) -> None:
        """Load an adapter: PEFT's description, and safetensors in base64."""
        name = str(body["lora_name"])
        if name in self._digests:
            raise EngineError(f"adapter {name} has been loaded before; an adapter's name is used once")
        folder = self._folder / name
        write_adapter(folder, body["config_dict"], base64.b64decode(body["safetensors"]))
        try:
            await self._told("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except EngineError:
            shutil.rmtree(folder)
            raise
        self._digests[name] = str(body["sha256"])

    async def _unload(self, body: dict[str, Any]) -> None:
        name = str(body["lora_name"])
        if name not in self._digests:
            raise EngineError(f"adapter {name} {ABSENT}")
        if self._users[name]:
            raise EngineError(f"adapter {name}: {IN_USE}")
        digest = self._digests.pop(name)  # no request takes it any more
        try:
            await self._told("/v1/unload_lora_adapter", {"lora_name": name})
        except EngineError:
            self._digests[name] = digest
            raise
        shutil.rmtree(self._folder / name)

    async def _told(self, path: str, body: Mapping[str, Any] | None = None) -> str:
        """POST to vLLM and return its answer.

        Raises:
            EngineError: it refuses; the message has its words.
        """
        answer = await self._client.post(path, json=body)
        if answer.status_code != 200:
            raise EngineError(f"vLLM answered {path} with {answer.status_code}: {answer.text[:1000]}")
        return answer.text

    async def _health(self, request: Request) -> Response:
        try:
            well = self.ready and (await self._client.get("/health")).status_code == 200
        except httpx.TransportError:
            well = False
        return Response(status_code=200 if well else 503)


def write_adapter(folder: Path, config: Mapping[str, Any], tensors: bytes) -> None:
    """Write an adapter as PEFT does."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(tensors)


def _event(body: bytes, reply: Reply) -> bytes | None:
    """Return an event of SGLang's stream, or what vLLM sent if it has another form; the client says so of it."""
    try:
        event = reply.event(orjson.loads(body))
    except FOREIGN_FORM:
        return body
    return None if event is None else orjson.dumps(event)


def _whole(status: int, content: bytes, reply: Reply) -> Response:
    if status != 200:
        return Response(content, status_code=status, media_type="application/json")
    try:
        return Response(orjson.dumps(reply.whole(orjson.loads(content))), media_type="application/json")
    except FOREIGN_FORM as error:
        return _refusal(502, f"vLLM sent an answer of another form ({error!r})")


def _refusal(status: int, words: str) -> JSONResponse:
    return JSONResponse({"error": {"message": words, "code": status}}, status_code=status)


def _posted(function: Callable[[dict[str, Any]], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            await function(orjson.loads(await request.body() or b"{}"))
        except EngineError as error:
            return _refusal(400, str(error))
        except httpx.TransportError as error:
            return _refusal(503, f"vLLM does not answer: {error!r}")
        return JSONResponse({"success": True})

    return answer


def _got(function: Callable[[], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        return JSONResponse(function())

    return answer


async def unless_gone(request: Request, work: Awaitable[Response]) -> Response:
    """Return the response of ``work``, which ends as soon as the client leaves."""
    answer, gone = asyncio.ensure_future(work), asyncio.ensure_future(_gone(request))
    try:
        await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
        return answer.result() if answer.done() else Response(status_code=499)
    finally:
        for task in (answer, gone):
            task.cancel()
        await asyncio.gather(answer, gone, return_exceptions=True)


async def _gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        continue
