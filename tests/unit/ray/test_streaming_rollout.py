"""Generation token by token: what an engine has sent stays, whatever becomes of the engine."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from lab.testkit.engine import mock_engine
from lab.testkit.rollout_engine import rollout_args
from slime.args import Arguments
from slime.contract.engine import StandInEngine, logprob_of
from slime.exceptions import HttpStatusError
from slime.rollout import sglang_streaming_rollout
from slime.rollout.generation import GenerateState
from slime.rollout.sglang_streaming_rollout import generate_streaming
from slime.utils import http_utils
from slime.utils.misc import SingletonMeta
from slime.utils.types import Sample

PROMPT = [11, 12]
REPLY = [5, 9, 2, 8, 4]


@pytest.fixture
def args(tiny_random_model: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Arguments]:
    monkeypatch.setattr(http_utils, "_http_client", None)
    monkeypatch.setattr(http_utils, "FIRST_DELAY_SECONDS", 0.0)
    SingletonMeta.clear(GenerateState)
    yield rollout_args(tiny_random_model)
    SingletonMeta.clear(GenerateState)


def engine_of(engine: StandInEngine, args: Arguments) -> None:
    parts = urlsplit(engine.url)
    args.sglang_router_ip, args.sglang_router_port = parts.hostname, parts.port


def rest(prompt: list[int]) -> list[int]:
    return REPLY[len(prompt) - len(PROMPT) :]


@pytest.mark.parametrize("cumulative", [False, True])
@pytest.mark.parametrize("chunk_tokens", [1, 2, 9])
async def test_a_response_is_the_engines(args: Arguments, cumulative: bool, chunk_tokens: int) -> None:
    async with mock_engine(rest) as engine:
        engine.cumulative, engine.chunk_tokens = cumulative, chunk_tokens
        engine_of(engine, args)
        sample = await generate_streaming(args, Sample(tokens=list(PROMPT)), {"max_new_tokens": 9})
    assert sample.tokens == PROMPT + REPLY
    assert sample.rollout_log_probs == [logprob_of(n, token) for n, token in enumerate(REPLY)]
    assert (sample.status, sample.weight_spans) == (Sample.Status.COMPLETED, [["1", 0, 5]])
    sample.validate()


async def test_it_goes_on_where_the_engine_broke_off(args: Arguments) -> None:
    args.mask_offpolicy_in_partial_rollout = True
    async with mock_engine(rest) as engine:
        engine.fail_with, engine.break_after = [503], 2
        engine_of(engine, args)
        sample = Sample(tokens=list(PROMPT))
        original = engine.script

        def script(prompt: list[int]) -> list[int]:
            if len(prompt) > len(PROMPT):
                engine.version = "2"
            return list(original(prompt))

        engine.script = script
        await generate_streaming(args, sample, {"max_new_tokens": 9})
        asked = [request["input_ids"] for request in engine.requests]
    assert asked == [PROMPT, PROMPT, PROMPT + REPLY[:2]]
    assert sample.tokens == PROMPT + REPLY
    assert sample.weight_spans == [["1", 0, 2], ["2", 2, 5]]
    assert sample.weight_versions == ["1", "2"]
    assert sample.loss_mask == [0, 0, 1, 1, 1]


async def test_a_long_response_is_truncated(args: Arguments) -> None:
    async with mock_engine(rest) as engine:
        engine_of(engine, args)
        sample = await generate_streaming(args, Sample(tokens=list(PROMPT)), {"max_new_tokens": 3})
        assert (sample.status, sample.response_length) == (Sample.Status.TRUNCATED, 3)
        await generate_streaming(args, sample, {"max_new_tokens": 3})
        assert len(engine.requests) == 1


async def test_a_refusal_is_told_at_once_and_trying_ends(args: Arguments, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_streaming_rollout, "TRIES", 2)
    async with mock_engine(rest) as engine:
        engine_of(engine, args)
        engine.fail_with = [400]
        with pytest.raises(HttpStatusError, match="400"):
            await generate_streaming(args, Sample(tokens=list(PROMPT)), {"max_new_tokens": 3})
        engine.fail_with = [500, 500]
        with pytest.raises(HttpStatusError, match="500"):
            await generate_streaming(args, Sample(tokens=list(PROMPT)), {"max_new_tokens": 3})
    assert len(engine.requests) == 3


async def test_a_line_separator_in_the_text_ends_no_event(args: Arguments) -> None:
    text = "one\u2028two\x85three"
    meta = {
        "output_token_logprobs": [[-0.5, 7, None]],
        "completion_tokens": 1,
        "prompt_tokens": 2,
        "weight_version": "1",
        "finish_reason": {"type": "stop"},
    }
    line = b"data: " + json.dumps({"text": text, "meta_info": meta}, ensure_ascii=False).encode()
    ends = [line[:20], line[20:] + b"\r\n\r\ndata: [DO", b"NE]"]

    async def body() -> AsyncIterator[bytes]:
        for part in ends:
            yield part

    sample = Sample(tokens=list(PROMPT))
    await sglang_streaming_rollout._read(args, sample, httpx.Response(200, content=body()))
    assert (sample.response, sample.tokens) == (text, [*PROMPT, 7])
    lines = [line async for line in http_utils.stream_lines(httpx.Response(200, content=body()))]
    assert lines[1:] == ["", "data: [DONE]"]
