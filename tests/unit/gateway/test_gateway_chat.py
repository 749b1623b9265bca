"""Chat completions through the real OpenAI SDK: streamed and whole say the same, and the turn is exact."""

from __future__ import annotations

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from groundwork.paused import note_waiting, pause, resume
from openclaw.config.runtime_variables import GateVariables
from openclaw.gate.certificate import Facts, certify
from openclaw.gateway import turns
from openclaw.ledger.decisions import Offer
from slime.contract.engine import StandInEngine, logprob_of
from tests.unit.gateway.conftest import Stack, Starter

USER: Any = [{"role": "user", "content": "What is 2 + 3?"}]
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}
]
CALL = 'Let me look.\n<tool_call>\n{"name": "read", "arguments": {"path": "a <b>.txt"}}\n</tool_call>'
TWO_CALLS = CALL + '\n<tool_call>\n{"name": "read", "arguments": {"path": "b.txt"}}\n</tool_call>'
THOUGHT = "<think>\nTwo and three.\n</think>\n\nThe sum is **5** — déjà vu 🙂."


async def merged_stream(stack: Stack, **request: Any) -> dict[str, Any]:
    """Stream a reply and add its chunks up."""
    stream = await stack.client.chat.completions.create(
        model="any", stream=True, stream_options={"include_usage": True}, **request
    )
    result: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "finish": None, "usage": None}
    async for chunk in stream:
        result["id"] = chunk.id
        if chunk.usage:
            assert chunk.choices == []
            result["usage"] = chunk.usage
            continue
        choice = chunk.choices[0]
        result["content"] += choice.delta.content or ""
        result["reasoning"] += getattr(choice.delta, "reasoning_content", None) or ""
        for call in choice.delta.tool_calls or []:
            entry = result["calls"].setdefault(call.index, {"id": None, "name": "", "arguments": ""})
            entry["id"] = call.id or entry["id"]
            entry["name"] += (call.function.name if call.function else None) or ""
            entry["arguments"] += (call.function.arguments if call.function else None) or ""
        result["finish"] = choice.finish_reason or result["finish"]
    return result


@pytest.mark.parametrize("text", ["The sum is 5.", THOUGHT, "", "café <tool_call> is text without tools"])
async def test_streamed_and_whole_replies_are_the_same(stack: Stack, text: str) -> None:
    stack.say(text, text)
    streamed = await merged_stream(stack, messages=USER)
    whole = await stack.client.chat.completions.create(model="any", messages=USER)
    message = whole.choices[0].message
    assert streamed["content"] == message.content
    assert streamed["reasoning"] == (getattr(message, "reasoning_content", None) or "")
    assert streamed["finish"] == whole.choices[0].finish_reason == "stop"
    assert streamed["usage"].model_dump() == whole.usage.model_dump()
    expected = text.split("</think>\n\n")[-1]
    assert message.content == expected
    if expected is not text:
        assert streamed["reasoning"] == "Two and three."


async def test_a_token_leaves_before_the_next_one_is_sampled(stack: Stack) -> None:
    stack.say("one two three")
    pieces = [stack.tokenizer.decode([index]) for index in stack.replies[0][:-1]]
    gate = stack.engine.token_gate = asyncio.Semaphore(1)
    stream = aiter(await stack.client.chat.completions.create(model="any", messages=USER, stream=True))
    assert (await anext(stream)).choices[0].delta.role == "assistant"
    for piece in pieces:
        assert (await anext(stream)).choices[0].delta.content == piece
        gate.release()
    assert (await anext(stream)).choices[0].finish_reason == "stop"


async def test_the_turn_holds_what_the_engine_saw_and_sampled(stack: Stack) -> None:
    stack.say(THOUGHT)
    streamed = await merged_stream(stack, messages=USER)
    (turn,) = stack.turns()
    (sent,) = stack.engine.requests
    assert turn.id == streamed["id"]
    assert turn.prompt_ids == sent["input_ids"]
    assert turn.prompt_ids == stack.tokenizer.apply_chat_template(USER, add_generation_prompt=True, return_dict=False)
    assert turn.response_ids == [
        *stack.tokenizer.encode(THOUGHT, add_special_tokens=False),
        stack.tokenizer.eos_token_id,
    ]
    assert turn.response_logprobs == [logprob_of(n, token) for n, token in enumerate(turn.response_ids)]
    assert [(span.version, span.start, span.end) for span in turn.weight_versions] == [("1", 0, len(turn.response_ids))]
    assert (turn.kind, turn.state, turn.finish_reason, turn.temperature, turn.top_p) == (
        "main",
        "waiting",
        "stop",
        0.6,
        1.0,
    )
    assert turn.messages == USER
    assert turn.response_message["reasoning_content"] == "Two and three."
    usage = streamed["usage"]
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(turn.prompt_ids), len(turn.response_ids))
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


async def test_a_reply_by_an_older_adapter_is_recorded_as_one(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    newest, plain = "weights-4-0123abcd-5-0123456789ab", StandInEngine._meta

    def meta(engine: StandInEngine, *values: Any) -> dict[str, Any]:
        return plain(engine, *values) | {"adapter_fallback": {"adapter": newest, "reason": "it is gone"}}

    stack.say("Good.", "Good.")
    await stack.client.chat.completions.create(model="any", messages=USER)
    monkeypatch.setattr(StandInEngine, "_meta", meta)
    await stack.client.chat.completions.create(model="any", messages=USER)
    assert [turn.adapter_fallback for turn in stack.turns()] == [None, newest]
    assert stack.metric("openclaw_adapter_fallbacks_total") == 1


@pytest.mark.parametrize("text", [CALL, TWO_CALLS])
@pytest.mark.parametrize("chunk_tokens", [1, 1000])
async def test_tool_calls_streamed_and_whole(stack: Stack, text: str, chunk_tokens: int) -> None:
    stack.engine.chunk_tokens = chunk_tokens
    stack.say(text, text)
    streamed = await merged_stream(stack, messages=USER, tools=TOOLS, tool_choice="auto")
    whole = await stack.client.chat.completions.create(model="any", messages=USER, tools=TOOLS)
    calls = whole.choices[0].message.tool_calls or []
    assert whole.choices[0].message.content == streamed["content"] == "Let me look."
    assert streamed["finish"] == whole.choices[0].finish_reason == "tool_calls"
    assert [call.function.arguments for call in calls] == [call["arguments"] for call in streamed["calls"].values()]
    assert [call.function.name for call in calls] == ["read"] * len(calls)
    assert json.loads(calls[0].function.arguments) == {"path": "a <b>.txt"}
    ids = [call.id for call in calls] + [call["id"] for call in streamed["calls"].values()]
    assert len(set(ids)) == 2 * len(calls)
    assert all(name.isalnum() for name in ids)


async def test_malformed_tool_call_comes_back_as_text(stack: Stack) -> None:
    text = "<tool_call>\nread the file\n</tool_call>"
    stack.say(text)
    reply = await stack.client.chat.completions.create(model="any", messages=USER, tools=TOOLS)
    assert reply.choices[0].message.content == text
    assert reply.choices[0].finish_reason == "stop"
    assert stack.metric("openclaw_malformed_tool_calls_total") == 1
    [turn] = stack.turns()
    assert turn.malformed_calls == 1


async def test_history_with_calls_reasoning_and_parts_is_rendered(stack: Stack) -> None:
    history: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "Read "}, {"type": "text", "text": "a."}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "I need the file.",
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "hello"},
    ]
    stack.say("Done.")
    await stack.client.chat.completions.create(model="any", messages=history, tools=TOOLS)
    text = stack.tokenizer.decode(stack.engine.requests[0]["input_ids"])
    assert "<|im_start|>system\nBe brief." in text
    assert "<|im_start|>user\nRead a.<|im_end|>" in text
    assert '{"name": "read", "arguments": {"path": "a"}}' in text
    assert "<tool_response>\nhello\n</tool_response>" in text
    assert stack.turns()[0].messages == history


@pytest.mark.parametrize("change", [{"temperature": 0.0}, {"extra_body": {"top_k": 1}}])
async def test_a_seed_is_taken_where_nothing_is_drawn(stack: Stack, change: dict[str, Any]) -> None:
    stack.say("a")
    reply = await stack.client.chat.completions.create(model="any", messages=USER, seed=3, **change)
    assert reply.choices[0].message.content == "a"


async def test_a_seed_that_would_have_no_effect_is_refused_by_name(stack: Stack) -> None:
    for stream in (True, False):
        with pytest.raises(openai.BadRequestError, match="'temperature': 0") as caught:
            await stack.client.chat.completions.create(model="any", messages=USER, seed=3, stream=stream)
        assert (caught.value.param, caught.value.code) == ("seed", "unsupported_parameter")
    assert stack.engine.requests == []


async def test_sampling_parameters_reach_the_engine_and_the_turn(stack: Stack) -> None:
    stack.say("a", "b")
    create = stack.client.chat.completions.create
    await create(model="any", messages=USER)
    await create(
        model="any",
        messages=USER,
        temperature=1.0,
        top_p=1,
        logit_bias={},
        max_completion_tokens=7,
        user="u",
        store=False,
        metadata={"a": "b"},
    )
    first, second = [request["sampling_params"] for request in stack.engine.requests]
    assert (first["temperature"], first["top_p"]) == (0.6, 1.0)
    assert second == {"temperature": 1.0, "top_p": 1.0, "max_new_tokens": 7}
    assert [turn.temperature for turn in stack.turns()] == [0.6, 1.0]
    assert [turn.reason for turn in stack.turns()] == [None, None]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("top_p", 0.9),
        ("top_k", 5),
        ("min_p", 0.1),
        ("presence_penalty", 0.5),
        ("frequency_penalty", -1),
        ("repetition_penalty", 1.1),
        ("logit_bias", {"5": -100.0}),
    ],
)
async def test_a_changed_distribution_is_served_and_not_trained(stack: Stack, name: str, value: Any) -> None:
    stack.say("a")
    await stack.client.chat.completions.create(model="any", messages=USER, extra_body={name: value})
    assert stack.engine.requests[0]["sampling_params"][name] == value
    (turn,) = stack.turns()
    assert (turn.state, turn.reason) == ("excluded", "sampling_parameters")


async def test_length_limit_and_room(stack: Stack) -> None:
    stack.say("one two three four five six", "x")
    reply = await stack.client.chat.completions.create(model="any", messages=USER, max_tokens=3)
    assert reply.choices[0].finish_reason == "length"
    assert reply.usage
    assert reply.usage.completion_tokens == 3
    await stack.client.chat.completions.create(model="any", messages=USER, max_tokens=10**6)
    request = stack.engine.requests[1]
    assert request["sampling_params"]["max_new_tokens"] == 2048 - len(request["input_ids"])


async def test_stop_string_ends_the_text_and_the_generation(stack: Stack) -> None:
    stack.say("one two STOP three", "one two STOP three")
    streamed = await merged_stream(stack, messages=USER, stop=["STOP"])
    whole = await stack.client.chat.completions.create(model="any", messages=USER, stop="STOP")
    assert streamed["content"] == whole.choices[0].message.content == "one two "
    assert streamed["finish"] == whole.choices[0].finish_reason == "stop"
    turn = stack.turns()[0]
    assert len(turn.response_ids) == len(turn.response_logprobs) == turn.weight_versions[-1].end
    assert stack.tokenizer.decode(turn.response_ids).startswith("one two STOP")


class LossyTokenizer:
    """A tokenizer whose round trip changes ids, and that notes what it rendered and what it tokenised."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.prompts: list[str] = []
        self.tokenised: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __len__(self) -> int:
        return len(self._inner)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError("text was tokenised outside of the renderer")

    batch_encode_plus = encode_plus = __call__

    def encode(self, text: str, **kwargs: Any) -> Any:
        self.tokenised.append(text)
        return self._inner.encode(text, **kwargs)

    def apply_chat_template(self, *args: Any, **kwargs: Any) -> Any:
        self.prompts.append(self._inner.apply_chat_template(*args, **kwargs))
        return self.prompts[-1]


async def test_no_text_is_tokenised_twice(start: Starter, tokenizer: Any) -> None:
    lossy = LossyTokenizer(tokenizer)
    stack = await start(tokenizer=lossy)
    lossy.prompts.clear()  # of the check of the chat template
    text = "the the assistant <think>x</think> import é"
    pieces = tokenizer.convert_tokens_to_ids([chr(byte) if 33 <= byte < 127 else "Ġ" for byte in text.encode()])
    sampled = [*pieces, tokenizer.eos_token_id]
    assert tokenizer.encode(tokenizer.decode(sampled), add_special_tokens=False) != sampled
    stack.replies.append(sampled)
    reply = await stack.client.chat.completions.create(model="any", messages=USER)
    assert all(part in lossy.prompts[0] for part in lossy.tokenised)
    stack.replies.append(sampled)
    follow_up = [*USER, {"role": "assistant", "content": reply.choices[0].message.content}, USER[0]]
    await stack.client.chat.completions.create(model="any", messages=follow_up)
    assert [turn.response_ids for turn in stack.turns()] == [sampled, sampled]
    assert [turn.prompt_ids for turn in stack.turns()] == [request["input_ids"] for request in stack.engine.requests]
    assert len(lossy.prompts) == 3  # once more for the place of the reply, whose text has other ids
    assert len(set(lossy.tokenised)) == len(lossy.tokenised)


async def test_models_health_and_metrics(stack: Stack, http: httpx.AsyncClient) -> None:
    models = await stack.client.models.list()
    assert [model.id for model in models.data] == ["tiny-policy"]
    assert (await stack.client.models.retrieve("tiny-policy")).id == "tiny-policy"
    assert (await http.get("/healthz")).json()["status"] == "ok"
    stack.say("hi")
    await stack.client.chat.completions.create(model="any", messages=USER)
    text = (await http.get("/metrics")).text
    assert 'openclaw_requests_total{code="200"} 1.0' in text
    assert 'openclaw_turns_total{kind="main",outcome="stop"} 1.0' in text
    assert "openclaw_refused_total 0.0" in text


async def test_reply_carries_the_weight_version(stack: Stack, http: httpx.AsyncClient) -> None:
    stack.engine.version = "7"
    stack.say("hi")
    response = await http.post("/v1/chat/completions", json={"messages": USER})
    assert response.headers["x-weight-version"] == "7"
    assert response.json()["id"] == response.headers["x-request-id"] == stack.turns()[0].id


async def test_a_paused_training_is_shown_while_the_server_serves(
    stack: Stack, http: httpx.AsyncClient, tmp_path: Path
) -> None:
    """Finding B7: a fuse pauses training; whoever looks at the server learns why."""
    stack.service.config = replace(stack.service.config, run_dir=str(tmp_path))
    assert "training" not in (await http.get("/healthz")).json()
    assert "openclaw_training_paused 0.0" in (await http.get("/metrics")).text
    pause(tmp_path, 7, "train/ppo_kl>0.5 (it is 2)")
    told = (await http.get("/healthz")).json()
    assert (told["status"], told["training"]) == (
        "ok",
        "training is paused since rollout 7: train/ppo_kl>0.5 (it is 2)",
    )
    assert "openclaw_training_paused 1.0" in (await http.get("/metrics")).text
    resume(tmp_path)
    note_waiting(tmp_path, "training waits until nobody talks")
    pause(tmp_path, 8, "train/ppo_kl>0.5 (it is 2)", "alice")
    body = (await http.get("/healthz")).json()
    assert (body["training"], body["people_paused"]) == ("training waits until nobody talks", 1), "names nobody"
    shown = (await http.get("/metrics")).text
    assert all(f"{name} 1.0" in shown for name in ("openclaw_training_waits", "openclaw_people_paused"))


async def test_what_the_gate_keeps_refusing_is_shown(
    stack: Stack, http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "OFFER_SECONDS", 60.0)
    for rollout_id in range(3):
        assert "gate" not in (await http.get("/healthz")).json()
        stack.ledger.decisions.record(rollout_id, "refused", "1", "worse", by_margin=True)
    assert "gate" not in (await http.get("/healthz")).json()  # a server without a run
    stack.service.config = replace(stack.service.config, run_dir=str(tmp_path))
    told = (await http.get("/healthz")).json()
    assert told["status"] == "ok"
    assert told["gate"].startswith("the gate refused 3 batches lately")
    assert told["gate"].endswith("type: openclaw-rl accept RUN")


async def test_a_red_certificate_is_shown_until_an_update_serves(
    stack: Stack, http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "OFFER_SECONDS", 60.0)
    stack.service.config = replace(stack.service.config, run_dir=str(tmp_path))
    answer = await http.get("/v1/steps/last")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "step_not_found")
    red, green = (certify(Facts(loss_tokens=tokens), GateVariables()).to_dict() for tokens in (0.0, 9.0))
    stack.ledger.decisions.record(7, "refused", "2", "its certificate is red", certificate=red)
    told = (await http.get("/healthz")).json()
    assert told["status"] == "ok"
    assert told["certificate"].startswith("the update of batch 7 does not serve: no token had a loss (tokens): ")
    last = (await http.get("/v1/steps/last")).json()
    assert (last["rollout_id"], last["weight_version"], last["accepted"], last["certificate"]) == (7, "2", False, red)
    stack.ledger.decisions.record(8, "step", "3", "it may serve", certificate=green)
    stack.ledger.decisions.record(9, "refused", "4", "opinions")
    assert "certificate" not in (await http.get("/healthz")).json()
    assert (await http.get("/v1/steps/last")).json()["certificate"]["verdict"] == "green"


async def test_what_a_certificate_says_of_one_persons_update_is_shown_to_nobody_else(
    stack: Stack, http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "OFFER_SECONDS", 60.0)
    stack.service.config = replace(stack.service.config, run_dir=str(tmp_path))
    red, green = (certify(Facts(loss_tokens=tokens), GateVariables()).to_dict() for tokens in (0.0, 9.0))
    stack.ledger.decisions.record(1, "step", "1", "it may serve", certificate=green)
    for batch, person in enumerate(("alice", "bob", "carol"), 2):
        stack.ledger.decisions.record(batch, "refused", "1", "its certificate is red", certificate=red, person=person)
    stack.ledger.decisions.record(5, "step", "2", "it may serve", certificate=green, person="bob")
    answer = await http.get("/healthz")
    assert answer.json()["people_refused"] == 2
    assert not any(word in answer.text for word in ("certificate", "alice", "carol", "loss"))


async def test_health_reads_no_certificate_in_a_run_that_makes_none(
    stack: Stack, http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    monkeypatch.setattr(stack.ledger.decisions, "last_certified", lambda *_: reads.append("read"))
    for makes_some in (False, True):
        stack.service.config = replace(stack.service.config, run_dir=str(tmp_path), gate_certificate=makes_some)
        assert (await http.get("/healthz")).json()["status"] == "ok"
        assert len(reads) == makes_some


async def test_a_busy_ledger_does_not_make_the_gateway_look_frozen(
    stack: Stack, http: httpx.AsyncClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who watches the process ends one that does not tell its health; another process may hold the ledger for longer."""
    stack.service.config = replace(stack.service.config, run_dir=str(tmp_path))
    monkeypatch.setattr(turns, "OFFER_SECONDS", 0.01)
    free = threading.Event()
    monkeypatch.setattr(stack.ledger.decisions, "offer", lambda fewest: None if free.wait(3.0) else Offer(3, 4))
    told = (await http.get("/healthz")).json()
    free.set()
    assert told["status"] == "ok"
    assert "gate" not in told
