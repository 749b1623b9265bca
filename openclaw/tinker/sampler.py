"""Samples from the engines, with exact ids and log probabilities, and scores of prompts.

Guarantees: what was asked of an engine that went away is asked again of the next one, whole, for `WAIT_SECONDS`. Owners never find each
other's cached prefixes. Keeps nothing of a prompt.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from typing import Any

import httpx
import orjson

from openclaw.engine.client import CACHE_KEY, CacheKeys
from openclaw.tinker.requests import Sample
from openclaw.tinker.wire import Ranked, Sampled, Sequenced, UserError

BASE = "base"
"""The adapter's name with which an engine answers as its base model."""
WAIT_SECONDS = 120.0
PAUSE_SECONDS = 0.5
WORKED_SECONDS = 5.0
"""After which an engine that went away had been at work, so that the wait begins anew."""
ENGINE_SECONDS = 3600.0


class SamplerError(Exception):
    """The engines gave no answer; nobody's request is at fault."""


class Sampler:
    """Owns the connections to the engines."""

    def __init__(self, url: str, vocabulary: int, context: int, connections: int) -> None:
        """``url``: where engines answer; ``vocabulary`` and ``context``: of the model; ``connections``: at a time."""
        self._client = httpx.AsyncClient(
            base_url=url,
            timeout=ENGINE_SECONDS,
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=64),
            trust_env=False,
        )
        self._vocabulary, self._context = vocabulary, context
        self._keys = CacheKeys()

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def check(self, asked: Sample) -> list[int]:
        """Return the ids of a prompt.

        Raises:
            UserError: the request asks for what this server does not have.
        """
        refused = {
            "target_prompt_logprobs": asked.target_prompt_logprobs is not None,
            "prompt_alt_tokens_k": asked.prompt_alt_tokens_k > 0,
        }
        if given := [name for name, is_given in refused.items() if is_given]:
            raise UserError(f"{given[0]} is not offered here; leave it out")
        ids: list[int] = []
        for chunk in asked.prompt.chunks:
            if chunk.tokens is None:
                raise UserError(f"a prompt has a chunk of type {chunk.type}; this server samples from text alone")
            ids += chunk.tokens
        if not ids:
            raise UserError("the prompt is empty; send at least one token")
        if min(ids) < 0 or max(ids) >= self._vocabulary:
            raise UserError(f"the prompt has an id that this model does not have; it has 0 to {self._vocabulary - 1}")
        wanted = asked.sampling_params.max_tokens
        if len(ids) + (wanted or 1) > self._context:
            raise UserError(
                f"the prompt has {len(ids)} tokens and max_tokens is {wanted or 1}; together at most {self._context}"
            )
        last = asked.prompt_logprobs_last_n
        if last is not None and (not asked.prompt_logprobs or last >= len(ids)):
            raise UserError(
                "prompt_logprobs_last_n needs prompt_logprobs, and is less than the number of the prompt's tokens"
            )
        return ids

    async def sample(self, asked: Sample, ids: Sequence[int], adapter: str | None, owner: str) -> Sampled:
        """Return the samples of a checked request, from the base or an adapter.

        Raises:
            SamplerError: no engine answers.
            UserError: the engine refuses the request.
        """
        scored = bool(asked.prompt_logprobs) or asked.topk_prompt_logprobs > 0
        requests = [self._request(asked, ids, adapter, owner, number) for number in range(asked.num_samples)]
        async with asyncio.TaskGroup() as group:  # one that fails ends the others
            tasks = [group.create_task(self._ask(request)) for request in requests]
        answers = [task.result() for task in tasks]
        sequences = [_sequence(asked, answer) for answer in answers]
        meta = answers[0]["meta_info"]
        log_probs: list[float] | None = None
        ranked: Ranked | None = None
        if scored:
            first = len(ids) - (asked.prompt_logprobs_last_n or len(ids))
            found = [math.nan if entry[0] is None else float(entry[0]) for entry in meta["input_token_logprobs"]]
            log_probs = [*([math.nan] * (len(ids) - len(found))), *found]
            log_probs = [math.nan if place < max(1, first) else value for place, value in enumerate(log_probs)]
            if asked.topk_prompt_logprobs:
                rows = [_row(row, asked.topk_prompt_logprobs) for row in meta["input_top_logprobs"]]
                ranked = [*([[]] * (len(ids) - len(rows))), *rows]
                ranked = [[] if place < max(1, first) else row for place, row in enumerate(ranked)]
        return Sampled(sequences, log_probs, ranked, int(meta.get("cached_tokens", 0)))

    def _request(
        self, asked: Sample, ids: Sequence[int], adapter: str | None, owner: str, number: int
    ) -> dict[str, Any]:
        chosen = asked.sampling_params
        most = self._context - len(ids)
        parameters: dict[str, Any] = {
            "max_new_tokens": most if chosen.max_tokens is None else chosen.max_tokens,
            "temperature": chosen.temperature,
            "top_p": chosen.top_p,
            "top_k": chosen.top_k if chosen.top_k > 0 else -1,
            "skip_special_tokens": False,
        }
        if chosen.seed is not None:
            parameters["sampling_seed"] = (chosen.seed + number) % 2**31
        stop = chosen.stop
        if isinstance(stop, str):
            parameters["stop"] = [stop]
        elif stop and isinstance(stop[0], int):
            parameters["stop_token_ids"] = stop
        elif stop:
            parameters["stop"] = stop
        elif stop is not None:
            parameters["ignore_eos"] = True
        scored = number == 0 and (asked.prompt_logprobs or asked.topk_prompt_logprobs)
        first = len(ids) - (asked.prompt_logprobs_last_n or len(ids))
        return {
            "input_ids": list(ids),
            "sampling_params": parameters,
            "return_logprob": True,
            "logprob_start_len": max(0, first - 1) if scored else len(ids) - 1,
            "top_logprobs_num": max(asked.topk_sample_logprobs, asked.topk_prompt_logprobs if scored else 0),
            "lora_path": adapter or BASE,
            CACHE_KEY: self._keys.of(owner),
        }

    async def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        body, since = orjson.dumps(request), math.inf
        while True:
            began = time.monotonic()
            try:
                answer = await self._client.post(
                    "/generate", content=body, headers={"content-type": "application/json"}
                )
                if answer.status_code == 200:
                    return answer.json()
                problem = f"status {answer.status_code}: {answer.text[:500]}"
                if answer.status_code < 500 and answer.status_code != 429:
                    raise UserError(f"the engine refused the request with {problem}")
            except httpx.TransportError as error:
                problem = repr(error)
            now = time.monotonic()
            since = now if now - began > WORKED_SECONDS else min(since, now)
            if now - since > WAIT_SECONDS:
                raise SamplerError(f"no engine answered for {WAIT_SECONDS:.0f} s: {problem}")
            await asyncio.sleep(PAUSE_SECONDS)


def _sequence(asked: Sample, answer: dict[str, Any]) -> Sequenced:
    meta = answer["meta_info"]
    entries = meta["output_token_logprobs"]
    ids = [int(entry[1]) for entry in entries]
    if list(answer.get("output_ids", ids)) != ids:
        raise SamplerError("the engine's ids and log probabilities do not belong together")
    ranked = None
    if asked.topk_sample_logprobs:
        ranked = [_row(row, asked.topk_sample_logprobs) for row in meta["output_top_logprobs"]]
    stopped = meta["finish_reason"]["type"] == "stop"
    return Sequenced(ids, [float(entry[0]) for entry in entries], stopped, ranked)


def _row(row: Sequence[Sequence[Any]] | None, most: int) -> list[tuple[int, float]]:
    return [(int(entry[1]), float(entry[0])) for entry in (row or ())[:most]]
