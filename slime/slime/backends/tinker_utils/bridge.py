"""Stands where an engine would: answers `/generate` on loopback with what a service of the Tinker interface samples and scores.

So gateway, judge, teacher and evaluation need to know no second interface. Guarantees: ids and log probabilities are the service's,
unchanged, with the version of the weights that gave them. A reply comes in one piece, because the interface streams none; one that
began goes on with its version when another begins to serve. What the interface does not have is refused by name. A service that is
away is a 503, after which a gateway asks again. A service ends no reply early, so who aborts one hears at its end what it took.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import orjson
import pydantic
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from groundwork.network import find_available_port
from slime.backends.tinker_utils.service import BASE, AnySampler, RefusedError

if TYPE_CHECKING:
    from tinker import SampleResponse

logger = logging.getLogger(__name__)

HOST = "127.0.0.1"
START_SECONDS = 30.0
STATUS_GOES_ON = 202
"""Of the answer to an abort whose body comes when the reply has ended (`openclaw.engine.client`)."""
NEUTRAL: Mapping[str, Any] = {
    **{"min_p": 0, "frequency_penalty": 0, "presence_penalty": 0, "repetition_penalty": 1, "min_new_tokens": 0},
    **{"logit_bias": {}, "ignore_eos": False, "skip_special_tokens": True, "spaces_between_special_tokens": True},
    **{"no_stop_trim": False, "n": 1, "json_schema": None, "regex": None, "ebnf": None, "structural_tag": None},
}
"""Sampling parameters that the interface lacks, with the values that ask for nothing."""
KEPT_COUNTS = 1024
"""Replies of which an abort may still ask what they took; of more that have ended, the oldest go."""
KNOWN = frozenset({"max_new_tokens", "temperature", "top_p", "top_k", "stop", "stop_token_ids", "sampling_seed"})


class Bridge:
    """An engine's address, in a thread of its own. Owned by the driver.

    Attributes:
        port: on which it answers.
    """

    def __init__(self, tokenizer: Any, base: AnySampler) -> None:
        """``tokenizer``: for the ends of replies, and for texts that a judge writes; ``base`` answers until `serve`."""
        self._tokenizer, self._base, self._served = tokenizer, base, base
        self._working: set[asyncio.Task[Any]] = set()
        self._sampled_tokens: OrderedDict[str, asyncio.Task[tuple[int, dict[str, Any]]] | int] = OrderedDict()
        """Of each named reply: its work, then what it took."""
        self.port = find_available_port(host=HOST)
        application = Starlette(
            routes=[
                Route("/generate", self._generate, methods=["POST"]),
                Route("/abort_request", self._abort, methods=["POST"]),
                Route("/health", _done),
                Route("/health_generate", _done),
            ]
        )
        self._web = uvicorn.Server(
            uvicorn.Config(application, HOST, self.port, log_level="warning", lifespan="off", access_log=False)
        )
        self._web.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._web.run, name="bridge", daemon=True)

    def __enter__(self) -> Bridge:
        """Answer from now on."""
        self._thread.start()
        waiting = threading.Event()
        for _ in range(int(START_SECONDS / 0.05)):
            if self._web.started or not self._thread.is_alive():
                break
            waiting.wait(0.05)
        if not self._web.started:
            raise OSError(f"the address {HOST}:{self.port} for requests to the service could not be opened")
        return self

    def __exit__(self, *_: object) -> None:
        """Answer no more."""
        self._web.should_exit = self._web.force_exit = True
        self._thread.join()

    def serve(self, sampler: AnySampler) -> None:
        """Let every request that begins from now on be answered by ``sampler``."""
        sampler.load()
        self._served = sampler

    async def _generate(self, request: Request) -> Response:
        body = orjson.loads(await request.body())
        work = self._begin(body)
        if body.get("stream"):
            return StreamingResponse(self._event(work), media_type="text/event-stream")
        status, answer = await asyncio.shield(work)
        return Response(orjson.dumps(answer), status, media_type="application/json")

    async def _abort(self, request: Request) -> Response:
        """Say what a reply takes, at its end; of one that is unknown here, that all is well."""
        name = orjson.loads(await request.body()).get("rid")
        if name not in self._sampled_tokens:
            return await _done(request)
        return StreamingResponse(self._took(name), STATUS_GOES_ON, media_type="application/json")

    async def _took(self, name: str) -> AsyncIterator[bytes]:
        found = self._sampled_tokens[name]
        count = found if isinstance(found, int) else _count(*await asyncio.shield(found))
        yield orjson.dumps({"completion_tokens": count})

    async def _event(self, work: asyncio.Task[tuple[int, dict[str, Any]]]) -> AsyncIterator[bytes]:
        """Yield the one event of a reply; the answer's head goes first, as an engine's does."""
        status, answer = await asyncio.shield(work)
        if status != 200:
            answer = {"error": {"code": status, "message": answer["error"]["message"]}}
        yield b"data: " + orjson.dumps(answer) + b"\n\n"
        yield b"data: [DONE]\n\n"

    def _begin(self, body: Mapping[str, Any]) -> asyncio.Task[tuple[int, dict[str, Any]]]:
        """Return what gives the status and the answer. Who asked may leave: the service goes on and is paid, so the work ends."""
        task = asyncio.create_task(self._caught(self._answer(body)))
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        if isinstance(name := body.get("rid"), str):
            self._sampled_tokens[name] = task
            task.add_done_callback(lambda done: self._note_count(name, done))
        return task

    def _note_count(self, name: str, done: asyncio.Task[tuple[int, dict[str, Any]]]) -> None:
        """Keep of a reply that has ended only what it took."""
        self._sampled_tokens[name] = 0 if done.cancelled() else _count(*done.result())
        while len(self._sampled_tokens) > KEPT_COUNTS and isinstance(next(iter(self._sampled_tokens.values())), int):
            self._sampled_tokens.popitem(last=False)

    async def _caught(self, work: Any) -> tuple[int, dict[str, Any]]:
        import tinker

        try:
            return 200, await work
        except RefusedError as error:
            status, words = 400, str(error)
        except tinker.APIStatusError as error:
            fault = 400 <= error.status_code < 500 and error.status_code not in (401, 402, 403, 404, 408, 410, 429)
            status, words = 400 if fault else 503, f"the service answered {error.status_code}: {error.message}"
        except pydantic.ValidationError as error:
            status, words = 400, f"a parameter is invalid: {error.errors()[0]['msg']}"
        except tinker.TinkerError as error:
            status, words = 503, f"the service failed: {error}"
        except Exception as error:  # whatever the package raises, a gateway asks again
            logger.exception("a request to the service failed")
            status, words = 503, f"the service failed: {type(error).__name__}: {error}"
        if status == 503:
            logger.warning("%s", words)
        return status, {"error": {"message": words}}

    async def _answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        ids, asked = body.get("input_ids"), body.get("sampling_params") or {}
        if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
            raise RefusedError("input_ids has to be one list of token ids")
        if unknown := sorted({*body} & {"image_data", "token_ids_logprob", "return_routed_experts", "session_params"}):
            raise RefusedError(f"a service of the Tinker interface has no {unknown[0]}")
        name = body.get("lora_path")
        if name not in (None, BASE):
            raise RefusedError(f"there is no adapter {name}; a service trains one for everybody")
        sampler = self._base if name == BASE else self._served
        topk = int(body.get("top_logprobs_num") or 0)
        if asked.get("max_new_tokens") == 0:
            start = int(body.get("logprob_start_len", len(ids)))
            return self._scored(ids, start, topk, *await sampler.score(ids, topk))
        return self._sampled(ids, topk, *await sampler.sample(ids, self._parameters(asked), topk))

    def _parameters(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        """Return the interface's sampling parameters.

        Raises:
            RefusedError: it has no such parameter.
        """
        for parameter, value in asked.items():
            if parameter not in KNOWN and value not in (None, NEUTRAL.get(parameter)):
                raise RefusedError(f"a service of the Tinker interface has no {parameter}; leave it out")
        ends = [each for each in (self._tokenizer.eos_token_id,) if each is not None]
        stop: list[int] | list[str] = [*ends, *(each for each in asked.get("stop_token_ids") or () if each not in ends)]
        if strings := asked.get("stop"):
            if asked.get("stop_token_ids"):
                raise RefusedError("a service of the Tinker interface stops at strings or at tokens, not at both")
            stop = [*map(self._tokenizer.decode, ends), *([strings] if isinstance(strings, str) else strings)]
        parameters = {
            "max_tokens": asked.get("max_new_tokens"),
            "temperature": asked.get("temperature", 1.0),
            "top_p": asked.get("top_p", 1.0),
            "top_k": asked.get("top_k", -1),
            "seed": asked.get("sampling_seed"),
            "stop": stop or None,
        }
        return {name: value for name, value in parameters.items() if value is not None}

    def _sampled(self, ids: Sequence[int], topk: int, response: SampleResponse, version: str) -> dict[str, Any]:
        [reply] = response.sequences
        tokens, log_probs = list(reply.tokens), reply.logprobs
        if log_probs is None or len(log_probs) != len(tokens):
            raise RefusedError("the service gave no log probability for each token, so the reply cannot be used")
        meta = {
            "prompt_tokens": len(ids),
            "completion_tokens": len(tokens),
            "cached_tokens": response.prompt_cache_hit_tokens,
            "finish_reason": {"type": reply.stop_reason},
            "weight_version": version,
            "output_token_logprobs": [[value, token, None] for value, token in zip(log_probs, tokens, strict=True)],
        }
        if topk:
            meta["output_top_logprobs"] = [_row(row) for row in reply.topk_logprobs or ()]
        text = self._tokenizer.decode(tokens, skip_special_tokens=True)
        return {"text": text, "output_ids": tokens, "meta_info": meta}

    @staticmethod
    def _scored(ids: Sequence[int], start: int, topk: int, response: SampleResponse, version: str) -> dict[str, Any]:
        values = list(response.prompt_logprobs or ())
        if len(values) != len(ids):
            raise RefusedError(f"the service scored {len(values)} of {len(ids)} tokens")
        values = [None if value is None or math.isnan(value) else value for value in values]
        entries = [[value, token, None] for value, token in zip(values, ids, strict=True)][start:]
        if entries:
            entries[0][0] = None  # as an engine, which gives none for the first position that it scores
        meta = {
            "prompt_tokens": len(ids),
            "completion_tokens": 0,
            "cached_tokens": response.prompt_cache_hit_tokens,
            "finish_reason": {"type": "length"},
            "weight_version": version,
            "input_token_logprobs": entries,
        }
        if topk:
            rows = [_row(row) for row in response.topk_prompt_logprobs or ()][start:]
            meta["input_top_logprobs"] = [None, *rows[1:]]
        return {"text": "", "output_ids": [], "meta_info": meta}


def _count(status: int, answer: Mapping[str, Any]) -> int:
    """Return how many tokens an answer has."""
    return answer["meta_info"]["completion_tokens"] if status == 200 else 0


def _row(row: Sequence[tuple[int, float]] | None) -> list[list[Any]]:
    return [[value, token, None] for token, value in row or ()]


async def _done(request: Request) -> Response:
    """Answer that all is well: nothing runs here that could be aborted."""
    with contextlib.suppress(asyncio.CancelledError):
        await request.body()
    return Response(b"{}", media_type="application/json")
