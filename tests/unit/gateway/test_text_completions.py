"""``POST /v1/completions`` through the real OpenAI SDK: texts, ids, streams, numbers, bounds, and what is recorded."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import openai
import pytest

from openclaw.config.bounds import LARGE_BODY, TEXT_REPLIES
from openclaw.gateway.dialects import TEXT
from openclaw.gateway.dialects.dialect import unslim
from openclaw.gateway.large_bodies import LargeBodies
from slime.contract.engine import WAIT_SECONDS, logprob_of
from tests.unit.gateway.conftest import Stack, Starter


async def complete(stack: Stack, prompt: Any, **request: Any) -> Any:
    return await stack.client.completions.create(model="any", prompt=prompt, max_tokens=64, **request)


async def streamed(stack: Stack, prompt: Any, **request: Any) -> tuple[dict[int, dict[str, Any]], Any]:
    """Stream a completion; return what each choice adds up to, and the usage."""
    choices: dict[int, dict[str, Any]] = {}
    usage = None
    options = {"stream": True, "stream_options": {"include_usage": True}}
    async for chunk in await complete(stack, prompt, **options, **request):
        usage = chunk.usage or usage
        assert chunk.object == "text_completion"
        for choice in chunk.choices:
            seen = choices.setdefault(choice.index, {"text": "", "finish": None, "offsets": [], "logprobs": []})
            seen["text"] += choice.text
            seen["finish"] = choice.finish_reason or seen["finish"]
            seen["offsets"] += choice.logprobs.text_offset if choice.logprobs else []
            seen["logprobs"] += choice.logprobs.token_logprobs if choice.logprobs else []
    return choices, usage


async def test_a_text_and_its_ids_give_the_same(stack: Stack) -> None:
    text = "<|im_start|>user\nHi 🙂<|im_end|>\n"
    ids = stack.tokenizer(text).input_ids
    assert len(ids) < len(stack.tokenizer(text.replace("<|im_start|>", "< im_start>")).input_ids), (
        "control tokens count"
    )
    for prompt in (text, ids, [text], [ids]):
        stack.say("<think>\nhm\n</think>\n\nfünf 🙂")
        reply = await complete(stack, prompt)
        [choice] = reply.choices
        assert (reply.object, choice.index, choice.finish_reason) == ("text_completion", 0, "stop")
        assert choice.text == "<think>\nhm\n</think>\n\nfünf 🙂", "thoughts are text"
        turn = stack.ledger.turns.get(reply.id)
        assert (turn.kind, turn.state, turn.reason) == ("side", "excluded", "side")
        assert (turn.prompt_ids, turn.messages) == (ids, [{"role": "user", "content": text}])
        assert turn.response_message["content"] == choice.text
        assert turn.response_logprobs == [logprob_of(place, token) for place, token in enumerate(turn.response_ids)]
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (len(ids), len(turn.response_ids))
    assert len({turn.session_id for turn in stack.turns()}) == 4


async def test_streamed_and_whole_say_the_same(stack: Stack) -> None:
    stack.say("one 🙂", "two")
    choices, usage = await streamed(stack, "Count:", n=2, logprobs=2, echo=None)
    assert {choice["text"] for choice in choices.values()} == {"one 🙂", "two"}
    assert [choice["finish"] for choice in choices.values()] == ["stop", "stop"]
    turns = {turn.response_message["content"]: turn for turn in stack.turns()}
    for choice in choices.values():
        turn = turns[choice["text"]]
        assert choice["logprobs"] == turn.response_logprobs[:-1], "the end token has no text"
        assert choice["offsets"][0] == 0
        assert choice["offsets"] == sorted(choice["offsets"])
    assert usage.completion_tokens == sum(len(turn.response_ids) for turn in turns.values())
    assert usage.prompt_tokens == len(stack.tokenizer("Count:").input_ids)
    stack.say("three")
    whole = await complete(stack, "Count:", logprobs=2)
    numbers = whole.choices[0].logprobs
    assert "".join(numbers.tokens) == "three"
    assert numbers.text_offset == [sum(map(len, numbers.tokens[:place])) for place in range(len(numbers.tokens))]
    assert all(token in top for token, top in zip(numbers.tokens, numbers.top_logprobs, strict=True))
    assert all(1 <= len(top) <= 3 for top in numbers.top_logprobs), "the sampled one is always there"
    stack.say("four")
    assert (await complete(stack, "Count:", logprobs=0)).choices[0].logprobs.top_logprobs is None


async def test_an_echo_comes_before_the_text(stack: Stack) -> None:
    ids = stack.tokenizer("Say: ").input_ids
    for prompt in ("Say: ", ids):
        stack.say("yes", "yes")
        assert (await complete(stack, prompt, echo=True)).choices[0].text == "Say: yes"
        choices, _ = await streamed(stack, prompt, echo=True)
        assert choices[0]["text"] == "Say: yes"
    assert {turn.response_message["content"] for turn in stack.turns()} == {"yes"}


async def test_several_prompts_in_their_order(stack: Stack) -> None:
    stack.say("one", "two", "three", "four", "five", "six")
    prompts = ["a", "b b", "c c c c"]
    reply = await complete(stack, prompts, n=2)
    assert [choice.index for choice in reply.choices] == list(range(6))
    turns = sorted(stack.turns(), key=lambda turn: turn.id)
    assert [turn.id for turn in turns] == [reply.id, *(f"{reply.id}.{number}" for number in range(1, 6))]
    assert [turn.messages[0]["content"] for turn in turns] == [prompt for prompt in prompts for _ in range(2)]
    assert reply.usage.prompt_tokens == sum(len(stack.tokenizer(prompt).input_ids) for prompt in prompts)


async def test_a_stop_string_and_a_length(stack: Stack) -> None:
    stack.say("one, two, three")
    [choice] = (await complete(stack, "Count:", stop=[", three"], logprobs=1)).choices
    assert (choice.text, "".join(choice.logprobs.tokens), choice.finish_reason) == ("one, two", "one, two", "stop")
    stack.say("one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen")
    reply = await stack.client.completions.create(model="any", prompt="Count:")
    assert (reply.usage.completion_tokens, reply.choices[0].finish_reason) == (16, "length"), "OpenAI's default"


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"prompt": ""}, "prompt: send a text, or token ids, that is not empty"),
        ({"prompt": []}, "prompt: send a text, or token ids, that is not empty"),
        ({"prompt": ["a", []]}, "prompt: send a text, a list of token ids, or a list of either"),
        ({"prompt": [1, "a"]}, "prompt: send a text, a list of token ids, or a list of either"),
        ({"prompt": [-1]}, "prompt: send a text, a list of token ids"),
        ({"prompt": [10**6]}, "prompt: there is no token 1000000; the model has tokens 0 to"),
        ({"prompt": ["a"] * 20, "n": 2}, "prompt: 40 replies are too many; send at most 32 prompts times n"),
        ({"prompt": ["a"] * 33}, "33 replies are too many"),
        ({"prompt": "a", "suffix": "b"}, "'suffix' is not supported"),
        ({"prompt": "a", "best_of": 3}, "'best_of' is not supported: every reply is returned; send 'n'"),
        ({"prompt": "a", "echo": True, "logprobs": 1}, "'logprobs' is not supported: with 'echo'"),
        ({"prompt": "a", "logprobs": True}, "logprobs: send the number of alternatives, 0 to 20"),
        ({"prompt": "a", "logprobs": 21}, "logprobs: "),
        ({"prompt": "a", "messages": []}, "'messages' is not supported: POST /v1/chat/completions takes messages"),
        ({"prompt": "a", "tools": []}, "'tools' is not supported"),
        ({"prompt": "a", "stop": ["x"] * 17}, "stop: send up to 16 strings"),
        ({"messages": []}, "'messages' is not supported"),
        ({"model": "m"}, "prompt: send a text, a list of token ids"),
        ({"prompt": "x" * 40_000}, "However, your prompt has 40000 characters"),
        ({"prompt": [5] * 2048}, "However, your prompt has 2048 tokens"),
    ],
)
async def test_what_cannot_be_answered_is_named(stack: Stack, request_: dict[str, Any], says: str) -> None:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        answer = await client.post("/v1/completions", json=request_)
    assert answer.status_code == 400, answer.text
    assert says in answer.json()["error"]["message"]
    assert stack.turns() == []


async def test_it_is_a_side_turn_of_the_session_that_is_named(stack: Stack) -> None:
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False) as client:
        refused = await client.post("/v1/completions", json={"prompt": "a"}, headers={"X-Turn-Type": "main"})
        assert "a text completion is always a side turn" in refused.json()["error"]["message"]
        stack.say("b")
        given = await client.post("/v1/completions", json={"prompt": "a"}, headers={"X-Session-Id": "mine"})
    assert given.headers["x-turn-type"] == "side"
    [turn] = stack.turns()
    assert (turn.session_id, turn.id) == ("mine", given.json()["id"])
    assert turn.id.startswith("cmpl-")


async def test_keys_bounds_and_counts_are_those_of_chats(start: Starter) -> None:
    stack = await start(api_key="k", rate_limit_requests=2)
    other = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError):
        await other.completions.create(model="any", prompt="a")
    own = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="k", max_retries=0)
    with pytest.raises(openai.BadRequestError) as refused:
        await own.completions.create(model="any", prompt=["a"] * (TEXT_REPLIES.most + 1))
    assert refused.value.response.headers["x-limit"] == "text_replies"
    stack.say("b")
    await own.completions.create(model="any", prompt="a")
    with pytest.raises(openai.RateLimitError):
        await own.completions.create(model="any", prompt="a")
    value = stack.registry.get_sample_value
    counted = {code: value("openclaw_requests_total", {"code": code}) for code in ("200", "400", "401", "429")}
    assert counted == {"200": 1.0, "400": 1.0, "401": 1.0, "429": 1.0}
    assert value("openclaw_turns_total", {"kind": "side", "outcome": "stop"}) == 1.0
    await asyncio.gather(other.close(), own.close())


async def test_a_large_body_is_read_elsewhere(stack: Stack) -> None:
    body = b'{"prompt": [5, 6, 7], "user": "' + b"x" * LARGE_BODY.most + b'", "max_tokens": 4}'
    stack.say("b")
    async with httpx.AsyncClient(base_url=stack.url, trust_env=False, timeout=60) as client:
        headers = {"content-type": "application/json"}
        assert (await client.post("/v1/completions", content=body, headers=headers)).status_code == 200
    assert stack.turns()[0].prompt_ids == [5, 6, 7]
    reader = LargeBodies(64)
    here, there = TEXT.read(body, 64), unslim(TEXT, await reader.slim(body, TEXT))
    assert (there.prompts, there.form, there.request.max_tokens) == ([[5, 6, 7]], here.form, 4)
    await reader.close()


async def test_a_client_that_leaves_leaves_an_aborted_turn(stack: Stack) -> None:
    stack.engine.token_gate = asyncio.Semaphore(2)
    stack.say("one two three four five six seven eight")
    stream = await complete(stack, "Count:", stream=True)
    async for _ in stream:
        break
    await stream.close()
    await stack.engine.wait_for(lambda: bool(stack.engine.aborted))
    async with asyncio.timeout(WAIT_SECONDS):
        while not stack.turns():
            await asyncio.sleep(0)
    assert [turn.finish_reason for turn in stack.turns()] == ["abort"]
