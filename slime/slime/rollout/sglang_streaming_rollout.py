"""``--custom-generate-function-path slime.rollout.sglang_streaming_rollout.generate_streaming``: one turn, token by token.

Guarantee: tokens that an engine has sent are kept. If the engine goes away mid-response, the next one continues from
there, whereas the built-in `generate` would request everything again. It costs one event per token, so use it for long
responses on unreliable engines.
"""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx

from slime.args import Arguments
from slime.exceptions import HttpStatusError
from slime.rollout.engine_access import router_url, routing_headers
from slime.rollout.generation import (
    GenerateState,
    add_weight_spans,
    append_answer,
    mask_older_weights,
    request_of,
)
from slime.rollout.multimodal_requests import check_prompt_length
from slime.utils import http_utils
from slime.utils.types import Sample, take_experts

logger = logging.getLogger(__name__)

TRIES = 60
_DATA, _DONE = "data: ", "[DONE]"


async def generate_streaming(
    args: Arguments, sample: Sample, sampling_params: dict[str, Any], evaluation: bool = False
) -> Sample:
    """Answer one prompt in one turn; ``sample`` grows with every event of the engine.

    Raises:
        HttpStatusError: a 4xx answer, at once, or a 5xx answer, after `TRIES` tries without a new token.
        httpx.TransportError: the engines were unreachable in as many tries.
    """
    state = GenerateState(args)
    url = f"{router_url(args)}/generate"
    tries = http_utils.Tries(TRIES)
    while (payload := await request_of(state, sample, sampling_params, evaluation)) is not None:
        before = sample.response_length
        payload["stream"] = True
        try:
            stream = http_utils.shared_client().stream("POST", url, json=payload, headers=routing_headers(sample))
            async with stream as response:
                if response.status_code != 200:
                    raise HttpStatusError(url, response.status_code, (await response.aread()).decode(errors="replace"))
                await _read(args, sample, response)
            if sample.status != Sample.Status.ABORTED or state.aborted:
                return sample
            raise httpx.RemoteProtocolError("the engine ended the request early")
        except (httpx.TransportError, HttpStatusError) as error:
            if sample.response_length > before:
                tries.begin_again()
            tries.failed(error)
            logger.warning("sample %s continues after %d tokens: %s", sample.index, sample.response_length, error)
        await tries.pause()
    sample.status = Sample.Status.TRUNCATED
    return sample


async def _read(args: Arguments, sample: Sample, response: httpx.Response) -> None:
    """Append the events of one answer; raise httpx.RemoteProtocolError if it ends before the response does."""
    start, spans = sample.response_length, len(sample.weight_spans)
    text_start, prompt = len(sample.response), len(sample.tokens)
    async for line in http_utils.stream_lines(response):
        if not line.startswith(_DATA) or line == _DATA + _DONE:
            continue
        event = json.loads(line.removeprefix(_DATA))
        if "error" in event:
            raise HttpStatusError(str(response.url), event["error"].get("code") or 500, str(event["error"]))
        meta, have = event["meta_info"], sample.response_length - start
        check_prompt_length(sample, prompt, meta)
        entries, text = meta.get("output_token_logprobs") or [], event["text"]
        new = meta["completion_tokens"] - have
        if len(entries) > new:  # the engine repeats earlier tokens
            entries, text = entries[len(entries) - new :], text[len(sample.response) - text_start :]
        cut = append_answer(args, sample, entries, text)
        finished = cut or meta.get("finish_reason") is not None
        if finished and meta.get("weight_versions"):
            del sample.weight_spans[spans:]
            add_weight_spans(sample, start, meta)
        elif entries:
            add_weight_spans(sample, start + have, {"weight_version": meta.get("weight_version")})
        if args.mask_offpolicy_in_partial_rollout:
            mask_older_weights(sample)
        if finished:
            take_experts(args, sample, meta, prompt + meta["completion_tokens"])
            sample.update_from_meta_info(args, meta)
            sample.status = Sample.Status.TRUNCATED if cut else sample.status
            sample.weight_versions = list(dict.fromkeys(sample.weight_versions))
            return
        if sample.weight_spans and sample.weight_spans[-1][0] not in sample.weight_versions:
            sample.weight_versions.append(sample.weight_spans[-1][0])
    raise httpx.RemoteProtocolError("the answer ended before the response did")
