"""The routes of the Tinker interface.

Guarantees: a request needs a key of the server, or where it has none, the header that a key is sent in, which no page of another
origin can add. What a program asks about is its key's owner's, or unknown. A command is in the log before its answer; samples
are kept in memory, and one whose result is gone is asked for again (410). Bodies are bounded, unpacked ones as well. Samples are
counted for their owner before they are given. Who has used up a quota gets a failed result, which clients do not ask for again.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import zstandard
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from openclaw.gateway.auth import Keyring, sender
from openclaw.gateway.errors import ApiError, answer, from_ledger
from openclaw.gateway.guard import Doorway
from openclaw.gateway.limits import RateLimitError
from openclaw.gateway.stream import json_response
from openclaw.gateway.usage import USAGE_PATH, UsageDesk
from openclaw.ledger.exceptions import LedgerError, UnknownRecordError
from openclaw.ledger.records import Tokens
from openclaw.ledger.usage_page import shown_owner
from openclaw.tinker import requests as bodies
from openclaw.tinker.desk import (
    CREATE,
    LOAD,
    LOAD_MODEL,
    PASS,
    SAVE,
    SAVE_ELSEWHERE,
    SAVE_FOR_SAMPLER,
    SERVER,
    STEP,
    USER,
    Desk,
    Offer,
    model_id,
    sampler_id,
)
from openclaw.tinker.log import ClientModel, CommandConflictError, CommandLog, KeptWeights
from openclaw.tinker.sampler import Sampler, SamplerError
from openclaw.tinker.wire import PROTOBUF, Sampled, UserError, pass_of_json, read_pass, sample_result

logger = logging.getLogger(__name__)

BODY_BYTES = 64 << 20
"""Longest body, also after unpacking; a client's chunks have about 5 MB."""
POLL_SECONDS = 20.0
"""How long a request for a result waits; clients give up after 45 s."""
MOST_SAMPLES = 4096
"""Samples under way."""
SAMPLES_BYTES = 2048
"""What a request for samples takes besides its result."""
KEPT_BYTES = 256 << 20
"""Results of samples that are kept for who asks again."""
RESULT_SECONDS = 24 * 3600.0
"""How long the log keeps results of commands."""
SWEEP_SECONDS = 60.0
SILENT_SECONDS = 24 * 3600.0
"""After which a session without a sign of life has ended."""
PAGE = 100
T = TypeVar("T")


@dataclass
class _Samples:
    """A request for samples: whose it is, and its result or why there is none."""

    owner: str
    sequences: list[str]
    digest: bytes
    done: asyncio.Event = field(default_factory=asyncio.Event)
    result: bytes | None = None
    problem: tuple[str, str] | None = None
    task: asyncio.Task[None] | None = None

    @property
    def size(self) -> int:
        """What it takes in memory, about."""
        return SAMPLES_BYTES + sum(map(len, self.sequences)) + len(self.result or b"")


class Server:
    """Answers the requests of programs; used from one event loop."""

    def __init__(
        self, log: CommandLog, desk: Desk, sampler: Sampler, keyring: Keyring, doorway: Doorway, meters: UsageDesk
    ) -> None:
        """The parts are the caller's to close; ``desk`` tells :meth:`done`, and ``meters`` have the totals of ``log``."""
        self._log, self._desk, self._sampler, self._keyring, self._doorway = log, desk, sampler, keyring, doorway
        self._meters = meters
        self._offer: Offer = desk.offer
        self._samples: OrderedDict[str, _Samples] = OrderedDict()
        self._kept_bytes = self._running = 0
        self._waiting: dict[str, asyncio.Event] = {}
        self._seen: dict[str, float] = {}

    # What the log and the thread are asked

    async def _ask(self, work: Callable[..., T], *arguments: Any, **keywords: Any) -> T:
        return await asyncio.to_thread(work, *arguments, **keywords)

    def done(self, identity: str) -> None:
        """Tell who waits for a command that it has a result."""
        if (event := self._waiting.pop(identity, None)) is not None:
            event.set()

    async def sweep(self) -> None:
        """End what nobody uses any more, and read the keys again, in an endless loop."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                await self._ask(self._sweep)
            except Exception:
                logger.exception("sweeping failed; next try in %.0f s", SWEEP_SECONDS)

    def _sweep(self) -> None:
        self._keyring.reload()
        self._log.forget_results(time.time() - RESULT_SECONDS)
        for kept in self._log.expired_weights():
            self._log.drop_weights(kept)
        now = time.monotonic()
        for session, owner in self._log.open_sessions():
            if now - self._seen.setdefault(session, now) > SILENT_SECONDS:
                logger.info("session %s gave no sign of life for %.0f h; it ends", session, SILENT_SECONDS / 3600)
                self._end(session, owner)
        self._desk.tidy()

    def _end(self, session: str, owner: str) -> None:
        self._log.end_session(session, owner)
        self._desk.tidy()
        self._seen.pop(session, None)

    def _drop(self, kept: KeptWeights) -> None:
        self._log.drop_weights(kept)
        self._desk.tidy()

    # Requests

    async def body(self, request: Request) -> bytes:
        """Return a request's body, unpacked.

        Raises:
            ApiError: it is too long, or packed in another way.
        """
        parts: list[bytes] = []
        size = 0
        async for part in request.stream():
            size += len(part)
            if size > BODY_BYTES:
                raise ApiError(413, f"the body has more than {BODY_BYTES} bytes; send smaller chunks")
            parts.append(part)
        body = b"".join(parts)
        packed = request.headers.get("content-encoding", "identity")
        if packed == "zstd":
            try:
                reader = zstandard.ZstdDecompressor().stream_reader(body)
                body = await asyncio.to_thread(reader.read, BODY_BYTES + 1)
            except zstandard.ZstdError as error:
                raise ApiError(400, "the body is not what Content-Encoding says") from error
            if len(body) > BODY_BYTES:
                raise ApiError(413, f"the body has more than {BODY_BYTES} bytes once unpacked; send smaller chunks")
        elif packed != "identity":
            raise ApiError(415, f"Content-Encoding {packed!r} is not read here; use zstd or none")
        return body

    def owner(self, request: Request) -> str:
        """Return who sends a request.

        Raises:
            ApiError: 401 without a key of this server; 403 for a page of another origin, or another host's name.
        """
        self._doorway.check(request.headers)
        if "x-api-key" not in request.headers:
            raise ApiError(401, "send the header X-API-Key; the client does if TINKER_API_KEY is set", code="no_key")
        return self._keyring.check(request.headers, sender(request.scope)).owner

    async def usage(self, request: Request) -> Response:
        """Return the tokens of the client's programs by day, or those of all owners to an admin key."""
        self._doorway.check(request.headers)
        client = self._keyring.check(request.headers, sender(request.scope))
        asked = (request.query_params.get(name) for name in ("owner", "since", "until"))
        return json_response(await self._meters.page(client, *asked))

    # Sessions

    async def config(self, request: Request) -> Any:
        """Return the flags of clients: the defaults of every version."""
        return {"sample_max_concurrent_requests": MOST_SAMPLES // 4}

    async def capabilities(self, request: Request) -> Any:
        """Return what is offered."""
        offered = {"model_name": self._offer.name, "max_context_length": self._offer.context}
        return {"supported_models": [offered | {"trainable": True, "sampleable": True}]}

    async def create_session(self, request: Request) -> Any:
        """Begin a session."""
        asked = bodies.parse(bodies.CreateSession, await self.body(request))
        session = f"session-{secrets.token_hex(8)}"
        await self._ask(self._log.open_session, session, self.owner(request), asked.display_name)
        self._seen[session] = time.monotonic()
        return {"type": "create_session", "session_id": session}

    async def heartbeat(self, request: Request) -> Any:
        """Note that a session goes on."""
        session = bodies.parse(bodies.Heartbeat, await self.body(request)).session_id
        if not await self._ask(self._log.check_session, session, self.owner(request)):
            raise ApiError(410, "this session has ended")
        self._seen[session] = time.monotonic()
        return {"type": "session_heartbeat"}

    async def finish_session(self, request: Request) -> Any:
        """End a session."""
        await self._ask(self._end, request.path_params["session"], self.owner(request))
        return {}

    async def telemetry(self, request: Request) -> Any:
        """Accept what clients tell of themselves, and keep nothing."""
        await self.body(request)
        return {"status": "accepted"}

    async def _session(self, session: str, owner: str) -> None:
        """Raise UnknownRecordError if there is no such session, or ApiError if it has ended."""
        if not await self._ask(self._log.check_session, session, owner):
            raise ApiError(410, "this session has ended; begin another one")

    # Training

    async def _submit(self, model: str, owner: str, number: int, kind: str, body: bytes, **more: Any) -> Any:
        command = await self._ask(self._log.submit, model, owner, number, kind, body, **more)
        self._desk.wake()
        return {"request_id": command.id, "model_id": model}

    async def create_model(self, request: Request) -> Any:
        """Begin a model."""
        body, owner = await self.body(request), self.owner(request)
        asked = bodies.parse(bodies.CreateModel, body)
        await self._session(asked.session_id, owner)
        model = model_id(asked.session_id, asked.model_seq_id)
        return await self._submit(model, owner, 0, CREATE, body, session=asked.session_id)

    async def load_weights(self, request: Request) -> Any:
        """Begin a model as saved weights."""
        body, owner = await self.body(request), self.owner(request)
        asked = bodies.parse(bodies.LoadWeights, body)
        if asked.session_id is not None and asked.model_seq_id is not None:
            await self._session(asked.session_id, owner)
            model = model_id(asked.session_id, asked.model_seq_id)
            return await self._submit(model, owner, 0, LOAD_MODEL, body, session=asked.session_id)
        if asked.model_id is None or asked.seq_id is None:
            raise UserError("send session_id with model_seq_id, or model_id with seq_id")
        return await self._submit(asked.model_id, owner, _number(asked.seq_id), LOAD, body)

    async def forward_backward(self, request: Request) -> Any:
        """Pass over data."""
        body, owner = await self.body(request), self.owner(request)
        if not request.headers.get("content-type", "").startswith(PROTOBUF):
            body = await asyncio.to_thread(pass_of_json, body)
        asked = await asyncio.to_thread(read_pass, body)
        return await self._submit(asked.model, owner, _number(asked.number), PASS, body)

    async def of_model(self, request: Request) -> Any:
        """Take a command that the path names."""
        body = await self.body(request)
        asked = bodies.parse(bodies.Numbered, body)
        kind = request.url.path.rpartition("/")[2]
        return await self._submit(asked.model_id, self.owner(request), _number(asked.seq_id), kind, body)

    async def info(self, request: Request) -> Any:
        """Return what is known of a model."""
        asked = bodies.parse(bodies.OfModel, await self.body(request))
        model = await self._ask(self._log.model, asked.model_id, self.owner(request))
        facts = model.facts
        if not facts:
            raise ApiError(404, f"the model {model.id} has not been created yet", code="not_found")
        return {
            **{"type": "get_info", "model_id": model.id, "model_name": facts["base_model"], "is_lora": True},
            "lora_rank": facts["plan"]["rank"],
            "model_data": {
                **{"arch": self._offer.architecture, "model_name": facts["base_model"]},
                "tokenizer_id": self._offer.tokenizer,
            },
        }

    async def weights_info(self, request: Request) -> Any:
        """Return what is known of saved weights."""
        asked = bodies.parse(bodies.OfWeights, await self.body(request))
        kept = await self._ask(self._log.weights, asked.tinker_path, self.owner(request))
        return {"base_model": kept.facts["base_model"], "is_lora": True, "lora_rank": kept.facts["plan"]["rank"]}

    # Sampling

    async def create_sampler(self, request: Request) -> Any:
        """Begin a sampling session of the base or of saved weights."""
        owner = self.owner(request)
        asked = bodies.parse(bodies.CreateSampler, await self.body(request))
        await self._session(asked.session_id, owner)
        adapter = None
        if asked.model_path is not None:
            adapter = await self._adapter(asked.model_path, owner)
        else:
            self._check_base(asked.base_model)
        sampler = sampler_id(asked.session_id, asked.sampling_session_seq_id)
        await self._ask(self._log.add_sampler, sampler, owner, asked.session_id, asked.model_path, adapter)
        return {"type": "create_sampling_session", "sampling_session_id": sampler}

    def _check_base(self, name: str | None) -> None:
        if name != self._offer.name:
            raise UserError(f"base_model {name!r}: this server has {self._offer.name!r}")

    async def _adapter(self, path: str, owner: str) -> str:
        kept = await self._ask(self._log.weights, path, owner)
        if kept.kind != "sampler":
            raise UserError(f"{path} are weights for training; sample from what save_weights_for_sampler saved")
        return kept.place

    async def sampler(self, request: Request) -> Any:
        """Return what a sampling session asks."""
        sampler = request.path_params["sampler"]
        path, _ = await self._ask(self._log.sampler, sampler, self.owner(request))
        return {"sampler_id": sampler, "base_model": self._offer.name, "model_path": path}

    async def sample(self, request: Request) -> Any:
        """Begin a request for samples; sending it again is the same request."""
        owner, body = self.owner(request), await self.body(request)
        asked = await asyncio.to_thread(bodies.parse, bodies.Sample, body)
        if asked.sampling_session_id is not None:
            identity = f"{asked.sampling_session_id}:{asked.seq_id}" if asked.seq_id is not None else _fresh()
            _, adapter = await self._ask(self._log.sampler, asked.sampling_session_id, owner)
        else:
            identity = _fresh()
            adapter = await self._adapter(asked.model_path, owner) if asked.model_path else None
            if adapter is None:
                self._check_base(asked.base_model)
        digest = hashlib.sha256(body).digest()
        there = self._samples.get(identity)
        if there is not None and there.digest != digest:
            raise ApiError(
                409, f"the request {asked.seq_id} of this sampling session was sent before with other contents"
            )
        if there is None or there.problem is not None:
            if self._running + asked.num_samples > MOST_SAMPLES:
                raise ApiError(429, f"{MOST_SAMPLES} samples are under way; send it again", retry_after=1)
            ids = await asyncio.to_thread(self._sampler.check, asked)
            self._forget(identity)
            names = [f"{identity}:{number}" for number in range(asked.num_samples)]
            there = self._samples[identity] = _Samples(owner, names, digest)
            self._running += asked.num_samples
            there.task = asyncio.create_task(self._sample(there, asked, ids, adapter))
            there.task.add_done_callback(partial(self._sampled, there))
        return {"request_id": f"sample:{identity}", "sample_sequence_ids": there.sequences}

    async def _sample(self, samples: _Samples, asked: bodies.Sample, ids: list[int], adapter: str | None) -> None:
        try:
            await self._ask(check_quota, self._meters, samples.owner)
            sampled = await self._sampler.sample(asked, ids, adapter, samples.owner)
            result = await self._ask(sample_result, sampled)
            await self._ask(self._log.usage.add, samples.owner, _spent(ids, sampled))
            samples.result = result
        except* UserError as group:
            samples.problem = (USER, str(group.exceptions[0]))
        except* SamplerError as group:
            samples.problem = (SERVER, str(group.exceptions[0]))
        except* Exception as group:
            logger.exception("sampling failed")
            samples.problem = (SERVER, f"{type(group.exceptions[0]).__name__}: {group.exceptions[0]}")

    def _sampled(self, samples: _Samples, task: asyncio.Task[None]) -> None:
        """Tell that a request for samples has ended, also one that was cancelled before it began."""
        self._running -= len(samples.sequences)
        self._kept_bytes += samples.size
        samples.done.set()
        while self._kept_bytes > KEPT_BYTES and (oldest := next(iter(self._samples))):
            if not self._samples[oldest].done.is_set():
                break
            self._forget(oldest)

    def _forget(self, identity: str) -> None:
        """Let go of a request for samples that is done; a no-op if there is none."""
        samples = self._samples.pop(identity, None)
        if samples is not None and samples.done.is_set():
            self._kept_bytes -= samples.size

    async def cancel(self, request: Request) -> Any:
        """Let go of a request for samples; a no-op for any other."""
        asked = bodies.parse(bodies.Retrieve, await self.body(request))
        samples = self._samples.get(asked.request_id.removeprefix("sample:"))
        if samples is not None and samples.owner == self.owner(request) and not samples.done.is_set():
            samples.problem = (USER, "the request was cancelled")
            if samples.task is not None:
                samples.task.cancel()
        return {}

    # Results

    async def retrieve(self, request: Request) -> Any:
        """Return the result of a request, or after a while that it is to be asked for again."""
        owner = self.owner(request)
        identity = bodies.parse(bodies.Retrieve, await self.body(request)).request_id
        again = {"type": "try_again", "request_id": identity, "queue_state": "active"}
        if identity.startswith("sample:"):
            samples = self._samples.get(identity.removeprefix("sample:"))
            if samples is None or samples.owner != owner:
                raise ApiError(410, "this result is not kept; send the request again", code="gone")
            if not await _within(samples.done.wait()):
                return again
            if samples.problem is not None:
                category, reason = samples.problem
                return {"error": reason, "category": category}
            return Response(samples.result, media_type=PROTOBUF)
        command = await self._ask(self._log.command, identity, owner)
        if command.state == "waiting":
            event = self._waiting.setdefault(identity, asyncio.Event())
            command = await self._ask(
                self._log.command, identity, owner
            )  # it may have ended before the event was there
            if command.state == "waiting" and await _within(event.wait()):
                command = await self._ask(self._log.command, identity, owner)
            if command.state == "waiting":
                return again
            self._waiting.pop(identity, None)
        if command.result is None:
            raise ApiError(410, "this result is older than a day and not kept", code="gone")
        if command.kind == PASS and command.state == "done":
            return Response(command.result, media_type=PROTOBUF)
        return Response(command.result, media_type="application/json")

    # Lists

    async def sessions(self, request: Request) -> Any:
        """Return the sessions, a page at a time."""
        found = await self._ask(self._log.sessions_of, self.owner(request))
        offset, limit = _page(request)
        return {"sessions": found[offset : offset + limit]}

    async def session(self, request: Request) -> Any:
        """Return what a session has."""
        name, models, samplers = await self._ask(self._log.session, request.path_params["session"], self.owner(request))
        return {"training_run_ids": models, "sampler_ids": samplers, "display_name": name}

    async def runs(self, request: Request) -> Any:
        """Return the models, a page at a time."""
        owner = self.owner(request)
        models = await self._ask(self._log.models, owner)
        offset, limit = _page(request)
        shown = [await self._run(model, owner) for model in models[offset : offset + limit]]
        return {"training_runs": shown, "cursor": {"offset": offset, "limit": limit, "total_count": len(models)}}

    async def run(self, request: Request) -> Any:
        """Return a model."""
        owner = self.owner(request)
        return await self._run(await self._ask(self._log.model, request.path_params["run"], owner), owner)

    async def _run(self, model: ClientModel, owner: str) -> dict[str, Any]:
        kept = await self._ask(self._log.all_weights, owner, model.id)
        newest = {kind: next((_checkpoint(each) for each in kept if each.kind == kind), None) for kind in KINDS}
        return {
            **{"training_run_id": model.id, "base_model": model.facts.get("base_model"), "model_owner": owner},
            **{"is_lora": True, "lora_rank": model.facts.get("plan", {}).get("rank")},
            **{"last_request_time": _time(model.used_at), "user_metadata": model.facts.get("user_metadata")},
            **{"last_checkpoint": newest["training"], "last_sampler_checkpoint": newest["sampler"]},
        }

    async def checkpoints_of_run(self, request: Request) -> Any:
        """Return the weights of a model."""
        owner, run = self.owner(request), request.path_params["run"]
        await self._ask(self._log.model, run, owner)
        kept = await self._ask(self._log.all_weights, owner, run)
        return {"checkpoints": [_checkpoint(each) for each in kept]}

    async def checkpoints(self, request: Request) -> Any:
        """Return all weights, a page at a time."""
        kept = await self._ask(self._log.all_weights, self.owner(request))
        offset, limit = _page(request)
        shown = [_checkpoint(each) for each in kept[offset : offset + limit]]
        return {"checkpoints": shown, "cursor": {"offset": offset, "limit": limit, "total_count": len(kept)}}

    async def delete_checkpoint(self, request: Request) -> Any:
        """Delete weights."""
        await self._ask(self._drop, await self._kept(request))
        return Response(status_code=204)

    async def expire_checkpoint(self, request: Request) -> Any:
        """Let weights expire."""
        kept = await self._kept(request)
        seconds = bodies.parse(bodies.TimeToLive, await self.body(request)).ttl_seconds
        await self._ask(self._log.expire_weights, kept.path, None if seconds is None else time.time() + seconds)
        return Response(status_code=204)

    async def _kept(self, request: Request) -> KeptWeights:
        path = "tinker://{run}/{kind}/{name}".format(**request.path_params)
        return await self._ask(self._log.weights, path, self.owner(request))


KINDS: Mapping[str, str] = {"training": "weights", "sampler": "sampler_weights"}


def check_quota(meters: UsageDesk, owner: str) -> None:
    """Raise UserError if an owner has used up a quota; for a thread that may wait for the log."""
    try:
        meters.check_now(shown_owner(owner))
    except RateLimitError as error:
        raise UserError(error.message) from error


def _spent(ids: Sequence[int], sampled: Sampled) -> Tokens:
    """Return what a request for samples took; several samples count their prompt once."""
    cached = min(len(ids), sampled.cached)
    tokens = sum(len(sequence.tokens) for sequence in sampled.sequences)
    return Tokens(prefill=len(ids) - cached, cached=cached, sampled=tokens)


def _fresh() -> str:
    return secrets.token_hex(8)


def _number(number: int) -> int:
    if number < 1:
        raise UserError(f"seq_id {number}: commands of a model are numbered from 1")
    return number


def _page(request: Request) -> tuple[int, int]:
    try:
        offset, limit = int(request.query_params.get("offset", 0)), int(request.query_params.get("limit", PAGE))
    except ValueError as error:
        raise UserError("offset and limit are numbers") from error
    return max(0, offset), max(0, min(PAGE, limit))


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat()


def _checkpoint(kept: KeptWeights) -> dict[str, Any]:
    _, _, name = kept.path.rpartition("/")
    return {
        **{"checkpoint_id": f"{KINDS[kept.kind]}/{name}", "checkpoint_type": kept.kind, "tinker_path": kept.path},
        **{"time": _time(kept.created_at), "user_metadata": kept.facts.get("user_metadata")},
        "expires_at": None if kept.expires_at is None else _time(kept.expires_at),
    }


async def _within(waiting: Awaitable[Any]) -> bool:
    try:
        async with asyncio.timeout(POLL_SECONDS):
            await waiting
    except TimeoutError:
        return False
    return True


def create_app(server: Server) -> Starlette:
    """Return the application."""

    def route(path: str, work: Callable[[Request], Awaitable[Any]], method: str = "POST") -> Route:
        async def handle(request: Request) -> Response:
            try:
                server.owner(request)
                found = await work(request)
            except ApiError as error:
                headers = {"retry-after": str(error.retry_after)} if error.retry_after else None
                return JSONResponse({"detail": error.message}, error.status, headers)
            except UserError as error:
                return JSONResponse({"detail": str(error)}, 422)
            except UnknownRecordError as error:
                return JSONResponse({"detail": str(error)}, 404)
            except CommandConflictError as error:
                return JSONResponse({"detail": str(error)}, 409)
            except LedgerError as error:
                return JSONResponse({"detail": str(error)}, 503)
            except ClientDisconnect:
                return Response(status_code=499)
            return found if isinstance(found, Response) else JSONResponse(found)

        return Route(f"/api/v1/{path}", handle, methods=[method])

    async def usage(request: Request) -> Response:
        try:
            return await server.usage(request)
        except ApiError as error:
            return answer(error, request.scope)
        except LedgerError as error:
            return answer(from_ledger(error), request.scope)

    checkpoint = "training_runs/{run}/checkpoints/{kind}/{name}"
    return Starlette(
        routes=[
            Route(USAGE_PATH, usage, methods=["GET"]),
            route("client/config", server.config),
            route("get_server_capabilities", server.capabilities, "GET"),
            route("healthz", _healthy, "GET"),
            route("create_session", server.create_session),
            route("session_heartbeat", server.heartbeat),
            route("sessions/{session}/finish", server.finish_session),
            route("telemetry", server.telemetry),
            route("create_model", server.create_model),
            route("get_info", server.info),
            route("forward_backward", server.forward_backward),
            *(route(kind, server.of_model) for kind in (STEP, SAVE, SAVE_FOR_SAMPLER, SAVE_ELSEWHERE)),
            route("load_weights", server.load_weights),
            route("weights_info", server.weights_info),
            route("create_sampling_session", server.create_sampler),
            route("samplers/{sampler}", server.sampler, "GET"),
            route("asample", server.sample),
            route("cancel_future", server.cancel),
            route("retrieve_future", server.retrieve),
            route("sessions", server.sessions, "GET"),
            route("sessions/{session}", server.session, "GET"),
            route("training_runs", server.runs, "GET"),
            route("training_runs/{run}", server.run, "GET"),
            route("training_runs/{run}/checkpoints", server.checkpoints_of_run, "GET"),
            route("checkpoints", server.checkpoints, "GET"),
            route(checkpoint, server.delete_checkpoint, "DELETE"),
            route(f"{checkpoint}/ttl", server.expire_checkpoint, "PUT"),
            *(route("{path:path}", _not_offered, method) for method in ("GET", "POST", "PUT", "DELETE")),
        ]
    )


async def _not_offered(request: Request) -> Any:
    raise ApiError(404, f"this server does not offer {request.method} {request.path_params['path']}", code="not_found")


async def _healthy(request: Request) -> Any:
    return {"status": "ok"}
