"""The gateway before a real SGLang engine: concurrent clients, grammars, choices, weight updates; all turns exact."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry
from safetensors.torch import load_file
from transformers import AutoTokenizer

from benchmarks.updates import swap_under_load
from chat_codec.detokenize import Vocabulary
from lab.testkit.engine import serve
from lab.testkit.live_engine import WeightSender
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.ledger.records import Turn
from openclaw.ledger.store import Ledger
from openclaw.owners import LOCAL
from slime.backends.sglang_utils.engine import SGLangEngine
from tests.helpers.engine_streams import model_of
from tests.helpers.live_gateway import gateway
from tests.helpers.tolerance import MODEL, tolerance

SESSIONS, TURNS, UPDATES = 20, 10, 20
TOLERANCE = tolerance(10.0, roundings=MODEL)
LEAVERS = 4
TOOLS: Any = [{"type": "function", "function": {"name": "read", "parameters": {"type": "object", "properties": {}}}}]


@pytest.fixture(scope="module")
def engine_url(engine: SGLangEngine) -> str:
    return engine.url()


async def converse(client: AsyncOpenAI, number: int) -> None:
    """One session, short of its own history: tools and streams in some, and the first `LEAVERS` leave a reply in the middle."""
    messages: list[Any] = [{"role": "user", "content": f"Session {number}: what is {number} + 3?"}]
    options: dict[str, Any] = {
        "model": "any",
        "max_tokens": 40,
        "extra_headers": {"X-Session-Id": f"session-{number}"},
        "extra_body": {"chat_template_kwargs": {"enable_thinking": bool(number % 2)}},
    }
    if number % 3 == 0:
        options["tools"] = TOOLS
    for turn in range(TURNS):
        message: dict[str, Any] = {"role": "assistant", "content": ""}
        if number < LEAVERS or number % 4 < 2:
            leaving = number < LEAVERS and turn == 5
            long = {"max_tokens": 800} if leaving else {}
            stream = await client.chat.completions.create(messages=messages, stream=True, **options | long)
            read = 0
            async for chunk in stream:
                read += 1
                message["content"] += chunk.choices[0].delta.content or ""
                if leaving and read == 2:
                    await stream.close()
                    break
        else:
            reply = await client.chat.completions.create(messages=messages, **options)
            message = reply.choices[0].message.model_dump(exclude_none=True)
        messages = [messages[0], message, {"role": "user", "content": f"Turn {turn}: shorter, please."}]


def forward(model: Any, turn: Turn) -> list[float]:
    ids = torch.tensor([*turn.prompt_ids, *turn.response_ids])
    with torch.no_grad():
        logits = model(ids[None]).logits[0] / turn.temperature
    scores = torch.log_softmax(logits[:-1], dim=-1).gather(1, ids[1:, None])[:, 0]
    return scores[len(turn.prompt_ids) - 1 :].tolist()


async def test_two_hundred_turns_are_exact(
    engine_url: str, tiny_random_model: Path, references: list[Any], tmp_path: Path
) -> None:
    async with gateway(engine_url, tiny_random_model, tmp_path) as (client, ledger, registry):
        await asyncio.gather(*(converse(client, number) for number in range(SESSIONS)))
    turns = [record.turn for record in ledger.views.turn_records()]
    assert len(turns) == SESSIONS * TURNS
    # A random model may end its reply before the engine hears that the client has left.
    assert 1 <= sum(turn.finish_reason == "abort" for turn in turns) <= LEAVERS
    for turn in turns:
        assert turn.response_ids
        assert turn.response_logprobs == pytest.approx(forward(references[0], turn), abs=TOLERANCE)
        assert [(span.start, span.end) for span in turn.weight_versions] == [(0, len(turn.response_ids))]
    assert registry.get_sample_value("openclaw_refused_total") == 0
    assert registry.get_sample_value("openclaw_session_events_total", {"event": "next_state"}) is not None
    print(ledger.views.counts())
    ledger.close()


async def test_turns_under_lessons_are_exact(
    engine_url: str, tiny_random_model: Path, references: list[Any], tmp_path: Path
) -> None:
    lesson, tokenizer = "Keep all answers short.", AutoTokenizer.from_pretrained(tiny_random_model)
    async with gateway(engine_url, tiny_random_model, tmp_path, lessons="auto") as (client, ledger, registry):
        ledger.lessons.add(LOCAL, lesson)
        await asyncio.gather(*(converse(client, number) for number in range(LEAVERS, 2 * LEAVERS)))
    turns = [record.turn for record in ledger.views.turn_records()]
    assert len(turns) == LEAVERS * TURNS
    for turn in turns:
        assert turn.response_logprobs == pytest.approx(forward(references[0], turn), abs=TOLERANCE)
        assert lesson in tokenizer.decode(turn.prompt_ids)
        assert lesson not in tokenizer.decode(turn.student_ids)
        assert lesson not in json.dumps(turn.messages)
    [kept] = ledger.lessons.of(LOCAL)
    assert kept.served == len(turns)
    assert registry.get_sample_value("openclaw_lessons_total", {"outcome": "served"}) == len(turns)
    assert sum(turn.next_state is not None for turn in turns) == len(turns) - LEAVERS
    ledger.close()


ASKED: Any = [{"role": "user", "content": "What is 2 + 3?"}]
SUM: Any = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}, "word": {"enum": ["yes", "no"]}},
    "required": ["ok", "word"],
    "additionalProperties": False,
}
ANSWER: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SUM}}
CHOOSE: Any = [{"type": "function", "function": {"name": name, "parameters": SUM}} for name in ("say", "ask")]


@pytest.mark.parametrize("tool_call_parser", ["qwen25", "qwen3_coder", "generic"])
async def test_the_grammar_holds_a_random_model(
    engine_url: str, tiny_random_model: Path, tmp_path: Path, tool_call_parser: str
) -> None:
    async with gateway(engine_url, tiny_random_model, tmp_path, tool_call_parser=tool_call_parser) as (
        client,
        ledger,
        _,
    ):
        create = client.chat.completions.create
        options: dict[str, Any] = {"model": "any", "messages": ASKED, "max_tokens": 400}
        reply = await create(response_format=ANSWER, **options)
        named = {"type": "function", "function": {"name": "ask"}}
        forced = await create(tools=CHOOSE, tool_choice=named, **options)
        one = await create(tools=CHOOSE, tool_choice="required", parallel_tool_calls=False, **options)
    for arguments in (
        reply.choices[0].message.content,
        *(call.function.arguments for answer in (forced, one) for call in answer.choices[0].message.tool_calls),
    ):
        value = json.loads(arguments)
        assert set(value) == {"ok", "word"}
        assert isinstance(value["ok"], bool)
        assert value["word"] in ("yes", "no")
    assert [call.function.name for call in forced.choices[0].message.tool_calls] == ["ask"]
    assert len(one.choices[0].message.tool_calls) == 1
    assert {forced.choices[0].finish_reason, one.choices[0].finish_reason} == {"tool_calls"}
    assert [record.turn.reason for record in ledger.views.turn_records()] == ["grammar"] * 3
    ledger.close()


async def test_choices_and_logprobs_are_the_engines(
    engine_url: str, tiny_random_model: Path, references: list[Any], tmp_path: Path
) -> None:
    async with gateway(engine_url, tiny_random_model, tmp_path) as (client, ledger, _):
        reply = await client.chat.completions.create(
            model="any", messages=ASKED, n=3, max_tokens=20, logprobs=True, top_logprobs=4
        )
    turns = {turn.id: turn for turn in (record.turn for record in ledger.views.turn_records())}
    silent = Vocabulary(AutoTokenizer.from_pretrained(tiny_random_model)).silent
    for choice in reply.choices:
        turn = turns[reply.id if choice.index == 0 else f"{reply.id}.{choice.index}"]
        entries = choice.logprobs.content
        # A random model says control tokens in the middle of a reply; they have no text and no entry.
        pairs = zip(turn.response_ids, forward(references[0], turn), strict=True)
        exact = [logprob for token, logprob in pairs if token not in silent]
        assert [entry.logprob for entry in entries] == pytest.approx(exact, abs=TOLERANCE)
        assert all(len(entry.top_logprobs) == 4 for entry in entries)
        likeliest = [entry.top_logprobs[0].logprob for entry in entries]
        assert all(best >= entry.logprob for best, entry in zip(likeliest, entries, strict=True))
    assert reply.usage.completion_tokens == sum(len(turn.response_ids) for turn in turns.values())
    assert len({tuple(turn.response_ids) for turn in turns.values()}) > 1
    ledger.close()


@pytest.mark.parametrize(
    "change",
    [
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}}},
        {"logit_bias": {"999999": 1}},
    ],
)
async def test_what_the_engine_cannot_do_is_a_400(
    engine_url: str, tiny_random_model: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    async with gateway(engine_url, tiny_random_model, tmp_path) as (client, ledger, _):
        for stream in (True, False):
            with pytest.raises(openai.BadRequestError):
                await client.chat.completions.create(model="any", messages=ASKED, stream=stream, extra_body=change)
    ledger.close()


@pytest.mark.parametrize("change", [{"top_p": 0.5}, {"repetition_penalty": 1.3}, {"logit_bias": {"20": 5}}])
async def test_a_changed_distribution_is_served_and_not_trained(
    engine_url: str, tiny_random_model: Path, references: list[Any], tmp_path: Path, change: dict[str, Any]
) -> None:
    async with gateway(engine_url, tiny_random_model, tmp_path) as (client, ledger, _):
        await client.chat.completions.create(model="any", messages=ASKED, max_tokens=10, extra_body=change)
    (record,) = ledger.views.turn_records()
    assert (record.turn.state, record.turn.reason) == ("excluded", "sampling_parameters")
    exact = forward(references[0], record.turn)
    assert (record.turn.response_logprobs == pytest.approx(exact, abs=TOLERANCE)) == ("top_p" in change)
    ledger.close()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"ignore_eos": True}, "ignore_eos"),
        ({"min_tokens": 10}, "min_tokens"),
        ({"stop_token_ids": [20]}, None),
        ({"skip_special_tokens": False}, None),
    ],
)
async def test_the_end_of_a_reply_is_the_requests(
    engine_url: str, tiny_random_model: Path, tmp_path: Path, change: dict[str, Any], reason: str | None
) -> None:
    async with gateway(engine_url, tiny_random_model, tmp_path) as (client, ledger, _):
        reply = await client.chat.completions.create(model="any", messages=ASKED, max_tokens=10, extra_body=change)
    (record,) = ledger.views.turn_records()
    end = AutoTokenizer.from_pretrained(tiny_random_model).eos_token_id
    ids = record.turn.response_ids
    if reason is not None:
        assert len(ids) == 10
        assert "min_tokens" not in change or end not in ids[:-1]
    elif 20 in ids and "stop_token_ids" in change:
        assert (ids.index(20), reply.choices[0].finish_reason) == (len(ids) - 1, "stop")
        reason = "stop_token_ids"
    assert record.turn.reason == reason
    ledger.close()


def worst_error(turn: Turn, models: list[Any]) -> float:
    """Largest difference to a forward with the weights that each token is tagged with."""
    worst = 0.0
    for span in turn.weight_versions:
        expected = forward(model_of(span.version, models), turn)
        pairs = zip(expected[span.start : span.end], turn.response_logprobs[span.start : span.end], strict=True)
        worst = max(worst, *(abs(wanted - stored) for wanted, stored in pairs))
    return worst


async def test_updates_under_streams_refuse_nothing(
    engine: SGLangEngine, random_models: list[Path], references: list[Any], tmp_path: Path
) -> None:
    """Twenty updates while six clients stream: whole replies, rising versions, exact logprobs, waits as long as the swap."""
    config = RuntimeConfig(
        policy_url=engine.url(), tokenizer=str(random_models[0]), context_length=2048, prm_max_new_tokens=512
    )
    ledger, registry = Ledger(tmp_path / "ledger.sqlite"), CollectorRegistry()
    service = ChatService(config, AutoTokenizer.from_pretrained(random_models[0]), ledger, registry)
    engine.set_weight_version("0")  # it has an even one, which stands for the same weights
    sender = WeightSender(engine, "under-load")
    weights = [load_file(path / "model.safetensors") for path in random_models]
    async with serve(create_app(service, registry)) as url:
        observed = await swap_under_load(url, sender, weights, updates=UPDATES, clients=6, max_tokens=80)
    sender.close()
    summary = observed.summary()
    print(summary)
    turns = [record.turn for record in ledger.views.turn_records()]
    ledger.close()
    assert observed.refused == []
    assert registry.get_sample_value("openclaw_refused_total") == 0
    assert len(turns) == len(observed.replies) > 6
    spans = [[span for span in turn.weight_versions] for turn in turns]
    for turn, own in zip(turns, spans, strict=True):
        numbers = [0 if span.version == "default" else int(span.version) for span in own]
        assert numbers == sorted(set(numbers))
        assert [own[0].start, *(span.end for span in own)] == [*(span.start for span in own), len(turn.response_ids)]
    assert max(map(len, spans)) >= 2, "no reply saw an update"
    # A machine that stands still between two updates samples nothing with the weights of the first.
    assert len({span.version for own in spans for span in own}) > UPDATES // 2
    assert max(worst_error(turn, references) for turn in turns) < TOLERANCE
    # Nobody waits much longer than the swap takes; a loaded machine stretches both.
    assert summary["held_waits"] >= UPDATES
    assert summary["beyond_swap_ms"]["p50"] <= max(100.0, summary["swap_ms"]["max"])
