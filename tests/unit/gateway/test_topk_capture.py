"""The policy's likeliest tokens come with the reply's own request and stay with turns that can be trained."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from openai import InternalServerError

from openclaw.gateway.chat import ChatService
from openclaw.ledger.records import TopK, Turn
from slime.contract.engine import likeliest
from tests.unit.gateway.conftest import Stack

USER: Any = [{"role": "user", "content": "What is 2 + 3?"}]
TEXT = "It is five, I think."
K = 3


def keep(service: ChatService, count: int = K) -> None:
    """Let the gateway keep what a method asks for."""
    service._topk = count


async def ask(stack: Stack, **options: Any) -> Turn:
    stack.say(TEXT)
    await stack.client.chat.completions.create(model="any", messages=USER, **options)
    return stack.turns()[-1]


def expected(ids: Sequence[int], asked: int = K, kept: int = K) -> TopK:
    """What the stand-in engine reports when ``asked`` tokens are asked for, and the first ``kept`` of them are kept."""
    rows = [likeliest(position, token, asked)[:kept] for position, token in enumerate(ids)]
    return TopK([[entry[0] for entry in row] for row in rows], [[entry[1] for entry in row] for row in rows])


@pytest.mark.parametrize("chunk_tokens", [1, 4, 1000])
@pytest.mark.parametrize("cumulative", [False, True])
async def test_one_request_gives_the_reply_and_its_likeliest_tokens(
    stack: Stack, chunk_tokens: int, cumulative: bool
) -> None:
    keep(stack.service)
    stack.engine.chunk_tokens, stack.engine.cumulative = chunk_tokens, cumulative
    turn = await ask(stack)
    (sent,) = stack.engine.requests
    assert sent["top_logprobs_num"] == K
    assert turn.response_topk == expected(turn.response_ids)


async def test_a_method_that_needs_none_asks_for_none(stack: Stack) -> None:
    turn = await ask(stack)
    assert "top_logprobs_num" not in stack.engine.requests[0]
    assert turn.response_topk is None


@pytest.mark.parametrize(("top", "asked"), [(1, K), (K, K), (K + 2, K + 2)])
async def test_a_client_gets_what_it_asked_for(stack: Stack, top: int, asked: int) -> None:
    plain = {"model": "any", "messages": USER, "logprobs": True, "top_logprobs": top}
    stack.say(TEXT, TEXT)
    without = await stack.client.chat.completions.create(**plain)
    keep(stack.service)
    found = await stack.client.chat.completions.create(**plain)
    assert stack.engine.requests[1]["top_logprobs_num"] == asked
    for entry, other in zip(
        found.choices[0].logprobs.content or [], without.choices[0].logprobs.content or [], strict=True
    ):
        assert len(entry.top_logprobs) <= top
        if asked == top:
            assert entry == other
    turn = stack.turns()[-1]
    assert turn.response_topk == expected(turn.response_ids, asked)


async def test_a_client_without_top_logprobs_sees_none(stack: Stack) -> None:
    keep(stack.service)
    stack.say(TEXT, TEXT)
    reply = await stack.client.chat.completions.create(model="any", messages=USER, logprobs=True)
    assert all(entry.top_logprobs == [] for entry in reply.choices[0].logprobs.content or [])
    plain = await stack.client.chat.completions.create(model="any", messages=USER)
    assert plain.choices[0].logprobs is None


@pytest.mark.parametrize(
    "change",
    [
        {"top_p": 0.5},
        {"presence_penalty": 0.5},
        {"extra_body": {"turn_type": "side"}},
        {"response_format": {"type": "json_object"}},
    ],
)
async def test_turns_that_are_never_trained_keep_none(stack: Stack, change: Any) -> None:
    keep(stack.service)
    turn = await ask(stack, **change)
    assert turn.never_trained or turn.reason
    assert turn.response_topk is None


async def test_a_reply_that_goes_on_after_a_break_has_a_row_per_token(stack: Stack) -> None:
    keep(stack.service)
    stack.engine.break_after = 3
    turn = await ask(stack)
    assert len(stack.engine.requests) == 2
    assert turn.response_topk is not None
    assert len(turn.response_topk.ids) == len(turn.response_topk.log_probs) == len(turn.response_ids)
    turn.validate()


async def test_every_choice_keeps_its_own(stack: Stack) -> None:
    keep(stack.service)
    stack.say(TEXT, "Five.")
    await stack.client.chat.completions.create(model="any", messages=USER, n=2)
    for turn in stack.turns():
        assert turn.response_topk == expected(turn.response_ids)


async def test_an_engine_that_reports_fewer_is_an_error(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(stack.service)
    monkeypatch.setattr("slime.contract.engine.likeliest", lambda position, token, count: [[-0.5, token, None]])
    with pytest.raises(InternalServerError, match=f"did not report the {K} most likely tokens"):
        await ask(stack)
