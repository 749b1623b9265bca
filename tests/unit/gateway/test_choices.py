"""Several choices of one request, and log-probabilities, through the real OpenAI SDK."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import httpx
import openai
import pytest

from openclaw.gateway.reply import interleave
from slime.contract.engine import likeliest, logprob_of
from tests.unit.gateway.conftest import Stack, Starter

USER: Any = [{"role": "user", "content": "What is 2 + 3?"}]
TEXTS = ("five", "5, and a bit more", "<think>\nhm\n</think>\n\nfünf 🙂")


async def ask(stack: Stack, **request: Any) -> Any:
    return await stack.client.chat.completions.create(model="any", messages=USER, **request)


async def streamed(stack: Stack, **request: Any) -> tuple[dict[int, dict[str, Any]], Any]:
    """Stream a reply; return what each choice adds up to, and the usage."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    async for chunk in await ask(stack, stream=True, stream_options={"include_usage": True}, **request):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            seen = choices.setdefault(choice.index, {"role": [], "content": "", "finish": None, "logprobs": []})
            seen["role"] += [choice.delta.role] if choice.delta.role else []
            seen["content"] += choice.delta.content or ""
            seen["finish"] = choice.finish_reason or seen["finish"]
            seen["logprobs"] += (choice.logprobs.content if choice.logprobs else None) or []
    return choices, usage


async def test_choices_whole_and_streamed(stack: Stack) -> None:
    stack.say(*TEXTS, *TEXTS)
    whole = await ask(stack, n=3)
    assert [choice.index for choice in whole.choices] == [0, 1, 2]
    contents = {"five", "5, and a bit more", "fünf 🙂"}
    assert {choice.message.content for choice in whole.choices} == contents
    choices, usage = await streamed(stack, n=3)
    assert {choice["content"] for choice in choices.values()} == contents
    assert [choice["role"] for choice in choices.values()] == [["assistant"]] * 3
    assert [choice["finish"] for choice in choices.values()] == ["stop"] * 3
    turns = stack.turns()
    assert len(turns) == 6
    assert usage.completion_tokens == whole.usage.completion_tokens == sum(len(turn.response_ids) for turn in turns[:3])
    assert usage.prompt_tokens == len(turns[0].prompt_ids)
    thought = next(turn.response_ids for turn in turns if "reasoning_content" in turn.response_message)
    end = thought.index(stack.tokenizer.convert_tokens_to_ids("</think>")) + 1
    assert usage.completion_tokens_details.reasoning_tokens == end
    names = [request["rid"] for request in stack.engine.requests]
    assert not any(name.startswith(other) for name in names for other in names if name != other)


async def test_interleaving_follows_the_sources() -> None:
    turn = [asyncio.Event() for _ in range(4)]
    closed = []

    async def source(name: str, *events: asyncio.Event) -> AsyncGenerator[str, None]:
        try:
            for event in events:
                await event.wait()
                yield name
        finally:
            closed.append(name)

    both = interleave([source("a", turn[0], turn[2]), source("b", turn[1], turn[3])])
    seen = []
    for event in turn:
        event.set()
        seen.append(await anext(both))
    assert seen == ["a", "b", "a", "b"]
    assert [item async for item in both] == []
    left = interleave([source("c", turn[0], asyncio.Event()), source("d", asyncio.Event())])
    assert await anext(left) == "c"
    await left.aclose()
    assert sorted(closed) == ["a", "b", "c", "d"]


async def test_the_choice_that_comes_back_gets_the_next_state(stack: Stack) -> None:
    stack.say("first", "second", "third", "fine")
    whole = await ask(stack, n=3)
    turns = {turn.id: turn for turn in stack.turns()}
    assert [turn.state for turn in turns.values()] == ["waiting"] * 3
    assert turns[whole.id].response_message["content"] == whole.choices[0].message.content
    chosen = whole.choices[2].message.content
    history = [*USER, {"role": "assistant", "content": chosen}, {"role": "user", "content": "Right."}]
    await stack.client.chat.completions.create(model="any", messages=history)
    states = {turn.response_message["content"]: turn.state for turn in stack.turns()}
    assert states.pop("fine") == "waiting"
    assert states.pop(chosen) == "pending"
    assert set(states.values()) == {"waiting"}


async def test_equal_choices_give_the_first_one_the_next_state(stack: Stack) -> None:
    stack.say("same", "same", "fine")
    whole = await ask(stack, n=2)
    history = [*USER, {"role": "assistant", "content": "same"}, {"role": "user", "content": "Right."}]
    await stack.client.chat.completions.create(model="any", messages=history)
    assert [turn.id for turn in stack.turns() if turn.state == "pending"] == [whole.id]


async def test_a_key_is_charged_for_every_choice(start: Starter) -> None:
    stack = await start(api_key="s3cret")
    stack.say("one two three", "four")
    headers = {"authorization": "Bearer s3cret"}
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, headers=headers) as client:
        reply = await client.post("/v1/chat/completions", json={"messages": USER, "n": 2})
    generated = reply.json()["usage"]["completion_tokens"]
    assert generated == sum(len(turn.response_ids) for turn in stack.turns())
    assert stack.metric("openclaw_key_tokens_total", key="environment", kind="generated") == generated


async def test_a_client_that_leaves_aborts_every_choice(stack: Stack) -> None:
    stack.say("one two three four", "one two three four")
    stack.engine.token_gate = asyncio.Semaphore(3)
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        request = {"messages": USER, "stream": True, "n": 2}
        async with client.stream("POST", "/v1/chat/completions", json=request) as response:
            async for _ in response.aiter_bytes():
                break
    await stack.engine.wait_for(lambda: len(stack.engine.aborted) == 2 and not stack.engine.running)
    async with asyncio.timeout(10):
        while len(stack.turns()) < 2:
            await asyncio.sleep(0.01)
    assert {turn.reason for turn in stack.turns()} == {"aborted"}


async def test_a_stop_string_in_one_choice_leaves_the_others_alone(stack: Stack) -> None:
    stack.say("a STOP b c d e f", "a b c d e f")
    whole = await ask(stack, n=2, stop="STOP")
    assert {choice.message.content for choice in whole.choices} == {"a ", "a b c d e f"}


async def test_an_engine_error_in_one_choice_is_the_reply(stack: Stack) -> None:
    stack.say("a", "b")
    stack.engine.fail_with = [400]
    with pytest.raises(openai.BadRequestError):
        await ask(stack, n=2)
    async with asyncio.timeout(10):
        while stack.metric("openclaw_requests_in_flight"):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("chunk_tokens", [1, 3, 100])
async def test_logprobs_are_the_engines(stack: Stack, chunk_tokens: int) -> None:
    stack.engine.chunk_tokens = chunk_tokens
    text = "<think>\nTwo.\n</think>\n\nThe sum is 5 — déjà vu 🙂."
    stack.say(text, text)
    whole = await ask(stack, logprobs=True, top_logprobs=3)
    choices, _ = await streamed(stack, logprobs=True, top_logprobs=3)
    entries = whole.choices[0].logprobs.content
    assert choices[0]["logprobs"] == entries
    turn = stack.turns()[0]
    sampled = turn.response_ids[:-1]
    assert [entry.logprob for entry in entries] == turn.response_logprobs[:-1]
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == text
    assert entries[0].token == "<think>"
    likely = [[item[0] for item in likeliest(n, token, 3)[:2]] for n, token in enumerate(sampled)]
    assert [[item.logprob for item in entry.top_logprobs] for entry in entries] == likely
    assert stack.engine.requests[0]["top_logprobs_num"] == 3
    assert turn.reason is None


async def test_without_top_logprobs_there_are_none(stack: Stack) -> None:
    stack.say("hi", "hi")
    whole = await ask(stack, logprobs=True)
    assert [entry.top_logprobs for entry in whole.choices[0].logprobs.content] == [[]] * (
        len(stack.turns()[0].response_ids) - 1
    )
    assert "top_logprobs_num" not in stack.engine.requests[0]
    assert (await ask(stack)).choices[0].logprobs is None


async def test_tokens_of_a_stop_string_have_no_logprobs(stack: Stack) -> None:
    stack.say("one ST two STOP three", "one ST two STOP three")
    whole = await ask(stack, logprobs=True, stop="STOP")
    choices, _ = await streamed(stack, logprobs=True, stop="STOP")
    entries = whole.choices[0].logprobs.content
    assert choices[0]["logprobs"] == entries
    text = b"".join(bytes(entry.bytes) for entry in entries).decode()
    assert text.startswith(whole.choices[0].message.content)
    assert "STOP" not in text
    assert [entry.logprob for entry in entries] == [
        logprob_of(n, token) for n, token in enumerate(stack.turns()[0].response_ids[: len(entries)])
    ]


async def test_reasoning_tokens_are_counted_to_the_end_of_the_thought(stack: Stack) -> None:
    for chunk_tokens in (1, 2, 100):
        stack.engine.chunk_tokens = chunk_tokens
        stack.say("<think>\nTwo and three.\n</think>\n\nfive", "five <think> is text")
        usage = (await ask(stack)).usage
        ids = stack.turns()[-1].response_ids
        end = ids.index(stack.tokenizer.convert_tokens_to_ids("</think>")) + 1
        assert usage.completion_tokens_details.reasoning_tokens == end < len(ids)
        assert (await ask(stack)).usage.completion_tokens_details.reasoning_tokens == 0


async def test_the_fingerprint_names_the_weights(stack: Stack) -> None:
    stack.engine.version = "7"
    stack.say("hi")
    assert (await ask(stack)).system_fingerprint == "weights-7"
