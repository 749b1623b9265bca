"""SGLang's routes in front of one vLLM server: what gateway, judge, gate, practice, rollouts and the engine's actor call.

Guarantees:

* Requests and answers are those of `translation`. A request that vLLM would not answer as it says is a 400 that names why.
* With adapters, a request keeps the one it was admitted with: the one it names, or the newest of the version that the actor told
  last. So no reply mixes versions. A request for the base model gets an adapter of zeros: vLLM's CPU kernels give a request without
  an adapter that of another request in the same batch (log/vllm.md).
* With an adapter per person, `slime.weight_sync.shelf` says which version answers, and which ones vLLM holds.
* With whole weights, vLLM's own spans say which version sampled each token. An event before the last one names the version at the
  moment when it was read.
* Leaving a request early aborts it in vLLM. A reply that breaks off in vLLM breaks off here, too.
* While generation is paused, requests wait; none is refused.
* A body that is not as its route needs it is a 400 that says what to send, before anything of it is done.

State: the adapters, the requests that run, the version. One event loop; vLLM is reached over a Unix socket that only its owner has.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import re
import reprlib
import shutil
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import httpx
import orjson
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from slime.backends.sglang_utils.server_hooks import IN_USE
from slime.backends.vllm_utils.translation import REQUEST_ID, Asked, Reply, Weights, parts_of, to_vllm
from slime.exceptions import EngineError, PeopleError, UntranslatableError
from slime.weight_sync import BASE, adapter_version
from slime.weight_sync.shelf import ADAPTER, FALLBACK, UNNAMED, Files, RefusedRequestError, Shelf

GENERATE = "/inference/v1/generate"
ABSENT = "does not exist"
"""In the refusal to unload an adapter; `SGLangEngine` looks for it."""
DEFAULT_VERSION = "default"
POLL_SECONDS = 0.1
FOREIGN_FORM = (LookupError, AttributeError, TypeError, ValueError)
"""What `Reply` raises of an answer that is not in vLLM's format."""
T = TypeVar("T")
ADAPTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""An adapter's name is that of its folder, too."""
MODES = ("retract", "in_place", "abort")
KINDS = {str: "a string", bool: "true or false", dict: "a JSON object"}


class Body:
    """The JSON object that a route gets. A field of another kind is an `UntranslatableError` that says what to send."""

    def __init__(self, route: str, content: bytes) -> None:
        """Parse ``content``; an empty one is an object without fields."""
        self._route = route
        try:
            fields = orjson.loads(content or b"{}")
        except orjson.JSONDecodeError as error:
            raise UntranslatableError(f"{route}: the body is not JSON ({error}); send a JSON object") from error
        if not isinstance(fields, dict):
            raise UntranslatableError(f"{route}: the body is a {type(fields).__name__}; send a JSON object")
        self._fields = fields

    def get(self, name: str, kind: type[T]) -> T | None:
        """Return a field, None if it is missing or null."""
        value = self._fields.get(name)
        if value is None or isinstance(value, kind):
            return value
        self.refuse(name, KINDS[kind])

    def need(self, name: str, kind: type[T]) -> T:
        """Return a field that has to be there, and that is not empty if it is a string."""
        value = self.get(name, kind)
        if value is None or value == "":
            self.refuse(name, KINDS[kind])
        return value

    def refuse(self, name: str, send: str) -> NoReturn:
        """Refuse a field; ``send``: what to send in its place."""
        value = reprlib.repr(self._fields[name]) if name in self._fields else "is missing"
        raise UntranslatableError(f"{self._route}: {name} {value}; send {send}")


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

    def __init__(
        self,
        client: httpx.AsyncClient,
        folder: Path,
        *,
        model: str,
        ranks: int,
        adapters: bool,
        people: tuple[Path, int] | None = None,
    ) -> None:
        """Create the routes.

        Args:
            client: of vLLM's server.
            folder: for the adapters' files.
            model: what the server serves.
            ranks: its tensor-parallel ranks.
            adapters: whether it serves adapters.
            people: the folder of everybody's adapters and how many it holds, if each person has one.
        """
        self._client, self._folder = client, folder
        self._model, self._ranks, self._adapters = model, ranks, adapters
        self._shelf = None if people is None else Shelf(self, *people)
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
        posts: dict[str, Callable[[Body], Awaitable[Any]]] = {
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
            "/v1/models": lambda: {"object": "list", "data": [{"id": name} for name in self._names()]},
        }
        return Starlette(
            routes=[
                Route("/generate", self._generate, methods=["POST"]),
                Route("/health", self._health),
                *(Route(path, _posted(path, function), methods=["POST"]) for path, function in posts.items()),
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
            await self._hold("retract")
        self.ready = True

    # Requests

    async def _generate(self, request: Request) -> Response:
        try:
            payload = orjson.loads(await request.body())
            parts = parts_of(payload)
            if parts is None:
                work = self._answered(to_vllm(payload, uuid.uuid4().hex))
            else:
                work = self._all_answered([to_vllm(part, uuid.uuid4().hex) for part in parts])
            return await unless_gone(request, work)
        except orjson.JSONDecodeError as error:
            return _refusal(400, f"the body is not JSON ({error}); send a JSON object with 'input_ids'")
        except UntranslatableError as error:
            return _refusal(400, str(error))
        except RefusedRequestError as error:
            return _refusal(error.status_code, str(error))
        except httpx.TransportError as error:
            return _refusal(503, f"vLLM does not answer: {error!r}")

    async def _all_answered(self, asked: Sequence[Asked]) -> Response:
        """Answer several prompts side by side; all end when one fails."""
        tasks = [asyncio.ensure_future(self._answered(one)) for one in asked]
        try:
            answers = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if (failed := next((answer for answer in answers if answer.status_code != 200), None)) is not None:
            return failed
        return Response(
            b"[" + b",".join(bytes(answer.body) for answer in answers) + b"]", media_type="application/json"
        )

    async def _answered(self, asked: Asked) -> Response:
        name, weights = await self._admit(asked)
        self._running.add(asked.name)
        whole, streams = False, False
        try:
            body = asked.body if name is None else {**asked.body, "model": name}
            sent = self._client.build_request(
                "POST", GENERATE, content=_written(body), headers={"content-type": "application/json"}
            )
            answer = await self._client.send(sent, stream=True)
            if answer.status_code == 200 and asked.stream:
                streams = True
                return _Events(answer, Reply(asked, weights), lambda whole: self._ended(asked.name, name, whole=whole))
            try:
                content = await answer.aread()
            finally:
                await answer.aclose()
            whole = True
            return _whole(answer.status_code, content, Reply(asked, weights))
        finally:
            if not streams:
                await self._ended(asked.name, name, whole=whole)

    async def _admit(self, asked: Asked) -> tuple[str | None, Weights]:
        """Return vLLM's name of the model that answers, None for its only one, and the version of what it says.

        An adapter stays until the request has `_ended`.
        """
        if self._shelf is not None:
            return await self._admit_person(asked, self._shelf)
        name, weights = await self._admit_newest(asked)
        if name is not None:
            self._users[name] += 1
        return name, weights

    async def _admit_person(self, asked: Asked, shelf: Shelf) -> tuple[str, Weights]:
        if not asked.adapter:
            raise UntranslatableError(UNNAMED)
        await self._open.wait()
        taken = await shelf.take(asked.adapter)
        more: dict[str, Any] = {ADAPTER: taken.name or BASE}
        if taken.fallback is not None:
            more[FALLBACK] = taken.fallback
        return taken.name or BASE, Weights(lambda: self.version, taken.version, taken.sha256, more)

    async def _admit_newest(self, asked: Asked) -> tuple[str | None, Weights]:
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

    async def _ended(self, request: str, name: str | None, *, whole: bool) -> None:
        """Let the adapter ``name`` go; of a request that has no ``whole`` answer vLLM hears before, because it reads the files late."""
        self._running.discard(request)
        if name is None:
            return
        if not whole:
            with contextlib.suppress(EngineError, httpx.TransportError):
                await self._told("/abort_requests", {"request_ids": [request]})
        if self._shelf is None:
            self._users[name] -= 1
        elif name != BASE:
            self._shelf.give_back(name)

    async def _abort(self, body: Body) -> None:
        """Abort all requests, or those whose name begins with ``rid``; vLLM ends their answers with what they have."""
        every, rid = body.get("abort_all", bool), body.get("rid", str)
        if not every and not rid:
            body.refuse("rid", "the name of a request, or abort_all true for all of them")
        prefix = REQUEST_ID + ("" if every else str(rid))
        if names := [name for name in self._running if name.startswith(prefix)]:
            await self._told("/abort_requests", {"request_ids": names})

    # Weights

    async def _pause(self, body: Body) -> None:
        mode = body.get("mode", str) or MODES[0]
        if mode not in MODES:
            body.refuse("mode", f"one of {', '.join(MODES)}")
        await self._hold(mode)

    async def _hold(self, mode: str) -> None:
        """Hold all requests; ``retract`` lets running ones compute their prefix again with whatever weights come."""
        self._open.clear()
        kind = "abort" if mode == "abort" else "keep"
        await self._told(f"/pause?mode={kind}&clear_cache=false")
        if mode != "in_place":
            await self._empty_cache()

    async def _continue(self, body: Body) -> None:
        await self._told("/resume")
        self._open.set()

    async def _flush(self, body: Body) -> None:
        await self._empty_cache()

    async def _empty_cache(self) -> None:
        """Empty the prefix cache; while generation is paused also what running requests have in it."""
        running = "false" if self._open.is_set() else "true"
        done = await self._told(f"/reset_prefix_cache?reset_running_requests={running}")
        if not json.loads(done)["success"]:
            raise EngineError("vLLM did not empty its prefix cache, because requests use it; pause generation first")

    async def _update_from_disk(self, body: Body) -> None:
        """Load a folder; vLLM ends if it is not one, so it is looked at first."""
        folder, version = Path(body.need("model_path", str)), body.need("weight_version", str)
        flush = body.get("flush_cache", bool)
        if not _has_weights(folder):
            raise EngineError(f"{folder} is not a Hugging Face folder with safetensors that this machine sees")
        await self._told("/collective_rpc", {"method": "load_folder", "kwargs": {"path": str(folder)}})
        if flush:
            await self._empty_cache()
        await self._serve_version(version)

    async def _tell_version(self, body: Body) -> None:
        await self._serve_version(body.need("new_version", str))

    async def _serve_version(self, version: str) -> None:
        """Let tokens of now on be of this version, and requests take its newest adapter."""
        await self._told("/update_weight_version", {"new_version": version})
        self.version = version
        names = [name for name in self._digests if adapter_version(name) == version]
        self._newest = names[-1] if names else self._newest

    async def _load(self, body: Body) -> None:
        """Load an adapter: PEFT's description, and safetensors in base64."""
        name, config, digest = body.need("lora_name", str), body.need("config_dict", dict), body.need("sha256", str)
        if not ADAPTER_NAME.fullmatch(name):
            body.refuse("lora_name", "letters, digits, '.', '_' and '-', 200 at most")
        try:
            tensors = base64.b64decode(body.need("safetensors", str), validate=True)
        except (binascii.Error, ValueError):
            body.refuse("safetensors", "the file in base64")
        await self._give(name, config, tensors)
        self._digests[name] = digest

    async def _unload(self, body: Body) -> None:
        name = body.need("lora_name", str)
        if name not in self._names()[1:]:
            raise EngineError(f"adapter {name} {ABSENT}")
        if self._users[name] or (self._shelf is not None and self._shelf.in_use(name)):
            raise EngineError(f"adapter {name}: {IN_USE}")
        digest = self._digests.pop(name, None)  # no request takes it any more
        if self._shelf is not None:
            self._shelf.gone(name)
        try:
            await self._take_away(name)
        except EngineError:
            if digest is not None:
                self._digests[name] = digest
            raise

    def _names(self) -> list[str]:
        """Return what vLLM serves: its model, then the adapters."""
        return [self._model, *self._digests, *(self._shelf.held if self._shelf is not None else ())]

    async def _give(self, name: str, config: Mapping[str, Any], tensors: bytes) -> None:
        """Let vLLM load an adapter from files of its own."""
        folder = self._folder / name
        try:
            write_adapter(folder, config, tensors)
        except FileExistsError:
            raise EngineError(f"adapter {name} has been loaded before; an adapter's name is used once") from None
        try:
            await self._told("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except EngineError:
            shutil.rmtree(folder)
            raise

    async def _take_away(self, name: str) -> None:
        await self._told("/v1/unload_lora_adapter", {"lora_name": name})
        shutil.rmtree(self._folder / name)

    # A `slime.weight_sync.shelf.Holder`

    def paused(self) -> bool:
        """Return whether requests are held."""
        return not self._open.is_set()

    def running(self, name: str) -> int:
        """Return 0: the shelf itself counts every request."""
        return 0

    async def load(self, name: str, files: Files) -> None:
        """Load a person's version."""
        try:
            await self._give(name, files.config, files.content)
        except (EngineError, OSError) as error:
            raise PeopleError(f"the engine refuses it: {error}") from error

    async def unload(self, name: str) -> str | None:
        """Unload a person's version; return why vLLM does not, None if it did."""
        try:
            await self._take_away(name)
        except (EngineError, httpx.TransportError) as error:
            return str(error)
        return None

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


def _written(value: Mapping[str, Any]) -> bytes:
    """Return JSON that was read before, as text; it may be nested deeper than orjson writes."""
    try:
        return orjson.dumps(value)
    except TypeError as error:
        raise UntranslatableError(f"the body cannot be passed on ({error}); send one with fewer levels") from error


def write_adapter(folder: Path, config: Mapping[str, Any], tensors: bytes) -> None:
    """Write an adapter as PEFT does."""
    content = _written(config)
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_bytes(content)
    (folder / "adapter_model.safetensors").write_bytes(tensors)


class _Events(StreamingResponse):
    """A reply as a stream. It ends its request however it ends, also if the client left before the first event."""

    def __init__(self, answer: httpx.Response, reply: Reply, ended: Callable[[bool], Awaitable[None]]) -> None:
        self._answer, self._reply, self._ended = answer, reply, ended
        self._whole = False
        super().__init__(self._translated(), media_type="text/event-stream")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            try:
                await self._answer.aclose()
            finally:
                await self._ended(self._whole)

    async def _translated(self) -> AsyncIterator[bytes]:
        async for body in sse_bodies(self._answer.aiter_raw()):
            event = _event(body, self._reply)
            if event is not None:
                yield b"data: " + event + b"\n\n"
        self._whole = True
        if (rest := self._reply.rest()) is not None:
            yield b"data: " + orjson.dumps(rest) + b"\n\n"
        yield b"data: [DONE]\n\n"


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


def _has_weights(folder: Path) -> bool:
    try:
        return (folder / "config.json").is_file() and any(folder.glob("*.safetensors"))
    except OSError:  # also of a name that no folder can have
        return False


def _posted(path: str, function: Callable[[Body], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        try:
            await function(Body(path, await request.body()))
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
