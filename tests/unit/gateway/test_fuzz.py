"""Fuzzing: whatever is sent, the gateway answers as its OpenAPI description says, and never with a 5xx."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator, Sequence
from queue import SimpleQueue
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from lab.testkit.engine import mock_engine, serve
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.app import create_app
from openclaw.gateway.chat import ChatService
from openclaw.gateway.dialects.anthropic import MessagesRequest
from openclaw.gateway.dialects.responses import ResponseRequest
from openclaw.gateway.dialects.text_completions import CompletionRequest
from openclaw.gateway.schema import IGNORED, ChatRequest
from openclaw.ledger.store import Ledger

pytestmark = pytest.mark.slow

REPLIES = ("Five.", "<think>\nhm\n</think>\n\n5", '<tool_call>\n{"name": "a", "arguments": {"b": 1}}\n</tool_call>', "")
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
WITH_BODY = {"POST /v1/chat/completions", "POST /v1/completions", "POST /v1/feedback", "POST /v1/responses"}
WITH_BODY |= {"POST /v1/messages", "POST /v1/messages/count_tokens"}
QUIET = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large, HealthCheck.large_base_example]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory, tokenizer: Any) -> Iterator[str]:
    """A gateway in a thread of its own, before an engine that has a reply for everything."""
    ledger = Ledger(tmp_path_factory.mktemp("fuzz") / "ledger.sqlite")
    told: SimpleQueue[Any] = SimpleQueue()

    def script(prompt: list[int]) -> Sequence[int]:
        text = REPLIES[len(prompt) % len(REPLIES)]
        return [*tokenizer.encode(text, add_special_tokens=False), tokenizer.eos_token_id]

    async def run() -> None:
        stop = asyncio.Event()
        async with mock_engine(script) as engine:
            engine.chunk_tokens = 4
            config = RuntimeConfig(
                policy_url=engine.url,
                tokenizer="tiny",
                context_length=2048,
                prm_max_new_tokens=99,
            )
            service = ChatService(config, tokenizer, ledger, CollectorRegistry())
            async with serve(create_app(service, CollectorRegistry())) as address:
                told.put((address, asyncio.get_running_loop(), stop))
                await stop.wait()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    address, loop, stop = told.get(timeout=30)
    yield address
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)
    ledger.close()


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[httpx.Client]:
    headers = {"content-type": "application/json"}
    with httpx.Client(base_url=url, trust_env=False, timeout=30, headers=headers) as http:
        yield http


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
TEXTS = st.text(max_size=12) | st.sampled_from(["<think>", "<tool_call>", "<|im_end|>", "\ud800", "\x00", "é🙂"])
FUNCTIONS = st.fixed_dictionaries(
    {"name": TEXTS | st.just("a")}, optional={"parameters": ANYTHING | st.just({"type": "object"}), "strict": ANYTHING}
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "robot"]), "content": TEXTS | ANYTHING},
    optional={
        "tool_calls": ANYTHING
        | st.lists(
            st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": TEXTS, "arguments": TEXTS | ANYTHING})}),
            max_size=2,
        ),
        "reasoning_content": TEXTS | ANYTHING,
        "name": ANYTHING,
        "tool_call_id": ANYTHING,
    },
)
TOOLS = st.lists(st.fixed_dictionaries({"type": st.just("function"), "function": FUNCTIONS | ANYTHING}), max_size=2)
SENSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "tools": TOOLS,
    "stream": st.booleans(),
    "n": st.integers(1, 3),
    "logprobs": st.booleans(),
    "top_logprobs": st.integers(0, 5),
    "stop": TEXTS | st.lists(TEXTS, max_size=3),
    "max_tokens": st.integers(0, 40),
    "tool_choice": st.sampled_from(["auto", "none", "required", {"type": "function", "function": {"name": "a"}}]),
    "response_format": st.sampled_from(
        [{"type": "json_object"}, {"type": "json_schema", "json_schema": {"name": "a"}}]
    ),
    "chat_template_kwargs": st.dictionaries(st.text(max_size=8), ANYTHING, max_size=2),
    "session_id": TEXTS,
}
NAMES = [*sorted(ChatRequest.model_fields.keys() | IGNORED), "whatever"]
FIELDS = st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=3)
BODIES = st.builds(
    lambda messages, sensible, wild: {"messages": messages, **sensible, **wild},
    st.lists(MESSAGES, min_size=1, max_size=3),
    st.fixed_dictionaries({}, optional=SENSIBLE),
    st.just({}) | FIELDS,
)


@settings(max_examples=50, deadline=None, suppress_health_check=QUIET)
@given(BODIES)
def test_no_body_makes_the_server_fail(client: httpx.Client, body: dict[str, Any]) -> None:
    content = json.dumps(body, allow_nan=True).encode("utf-8", "surrogatepass")
    check(client.post("/v1/chat/completions", content=content))


PROMPTS = TEXTS | st.lists(st.integers(-1, 999), max_size=4)
COMPLETIONS = st.builds(
    lambda prompt, sensible, wild: {"prompt": prompt, **sensible, **wild},
    PROMPTS | st.lists(PROMPTS, max_size=3) | ANYTHING,
    st.fixed_dictionaries(
        {}, optional={name: SENSIBLE[name] for name in ("stream", "n", "stop", "max_tokens", "session_id")}
    ),
    st.dictionaries(st.sampled_from([*sorted(CompletionRequest.model_fields), "whatever"]), ANYTHING, max_size=2),
)


@settings(max_examples=50, deadline=None, suppress_health_check=QUIET)
@given(COMPLETIONS)
def test_no_text_completion_makes_the_server_fail(client: httpx.Client, body: dict[str, Any]) -> None:
    content = json.dumps(body, allow_nan=True).encode("utf-8", "surrogatepass")
    check(client.post("/v1/completions", content=content))


PARTS = st.fixed_dictionaries(
    {"type": st.sampled_from(["input_text", "output_text", "refusal", "input_image", "input_file"])},
    optional={"text": TEXTS | ANYTHING, "refusal": TEXTS, "image_url": TEXTS | st.just("data:image/png;base64,AA")},
)
CONTENT = TEXTS | st.lists(PARTS, max_size=2) | ANYTHING
ITEM_IDS = st.sampled_from(["rs_1", "msg_" + "0" * 34, "ctc_" + "0" * 34 + "x", "chatcmpl-" + "0" * 32]) | ANYTHING
ITEMS = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "user", "assistant", "system", "developer", "robot"]), "content": CONTENT},
        optional={"type": st.just("message"), "id": ITEM_IDS},
    ),
    st.fixed_dictionaries(
        {"type": st.just("reasoning")},
        optional={
            "summary": st.lists(st.fixed_dictionaries({"type": st.just("summary_text"), "text": TEXTS})) | ANYTHING,
            "content": ANYTHING,
            "encrypted_content": ITEM_IDS,
            "id": ITEM_IDS,
        },
    ),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["function_call", "custom_tool_call"]),
            "call_id": TEXTS,
            "name": TEXTS | st.just("a"),
        },
        optional={
            "arguments": TEXTS | ANYTHING,
            "input": TEXTS | ANYTHING,
            "namespace": TEXTS | ANYTHING,
            "id": ITEM_IDS,
        },
    ),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["function_call_output", "custom_tool_call_output"]),
            "call_id": TEXTS | ANYTHING,
            "output": CONTENT,
        }
    ),
    st.fixed_dictionaries({"type": TEXTS | st.just("item_reference"), "id": ITEM_IDS}),
    ANYTHING,
)
FLAT = st.fixed_dictionaries(
    {"type": st.sampled_from(["function", "custom", "web_search"]), "name": TEXTS | st.just("a")},
    optional={"parameters": ANYTHING | st.just({"type": "object"}), "strict": ANYTHING, "format": ANYTHING},
)
SPACES = st.fixed_dictionaries(
    {"type": st.just("namespace"), "name": TEXTS, "tools": st.lists(FLAT, max_size=2) | ANYTHING}
)
RESPONSES = st.builds(
    lambda asked, sensible, wild: {"input": asked, **sensible, **wild},
    TEXTS | st.lists(ITEMS, max_size=4) | ANYTHING,
    st.fixed_dictionaries(
        {},
        optional={
            "stream": st.booleans(),
            "store": st.booleans(),
            "instructions": TEXTS,
            "max_output_tokens": st.integers(0, 40),
            "tools": st.lists(FLAT | SPACES | ANYTHING, max_size=2),
            "tool_choice": st.sampled_from(["auto", "none", "required", {"type": "custom", "name": "a"}])
            | st.fixed_dictionaries({"type": st.just("allowed_tools"), "mode": TEXTS, "tools": ANYTHING}),
            "include": st.lists(st.sampled_from(["message.output_text.logprobs", "reasoning.encrypted_content", "x"])),
            "top_logprobs": st.integers(0, 5),
            "text": st.fixed_dictionaries({"format": ANYTHING | st.just({"type": "json_object"})}),
            "previous_response_id": TEXTS | st.just("resp_" + "0" * 32),
        },
    ),
    st.dictionaries(st.sampled_from([*sorted(ResponseRequest.model_fields), "whatever"]), ANYTHING, max_size=2),
)


@settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
@given(RESPONSES)
def test_no_response_makes_the_server_fail(client: httpx.Client, body: dict[str, Any]) -> None:
    content = json.dumps(body, allow_nan=True).encode("utf-8", "surrogatepass")
    check(client.post("/v1/responses", content=content))


BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": TEXTS}, optional={"signature": TEXTS}),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": TEXTS}),
    st.fixed_dictionaries({"type": st.just("tool_use"), "id": TEXTS, "name": TEXTS, "input": ANYTHING}),
    st.fixed_dictionaries(
        {"type": st.just("tool_result"), "tool_use_id": TEXTS},
        optional={
            "content": TEXTS
            | ANYTHING
            | st.lists(
                st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS})
                | st.fixed_dictionaries({"type": st.just("tool_reference"), "tool_name": TEXTS})
                | st.fixed_dictionaries({"type": st.just("document"), "source": ANYTHING}),
                max_size=2,
            ),
            "is_error": st.booleans() | ANYTHING,
        },
    ),
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["image", "document"]),
            "source": st.fixed_dictionaries(
                {"type": st.sampled_from(["base64", "url", "text", "content"])},
                optional={"data": TEXTS, "media_type": TEXTS, "url": TEXTS, "content": TEXTS},
            ),
        }
    ),
    st.fixed_dictionaries({"type": st.sampled_from(["server_tool_use", "audio"])}),
    ANYTHING,
)
"""The grammar of blocks, with what is almost one."""
SENT = st.fixed_dictionaries(
    {
        "role": st.sampled_from(["user", "user", "assistant", "system", "robot"]),
        "content": TEXTS | st.lists(BLOCKS, max_size=3),
    }
)
ASKED: dict[str, st.SearchStrategy[Any]] = {
    "system": TEXTS | st.lists(st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}), max_size=2),
    "tools": st.lists(
        st.fixed_dictionaries(
            {"name": st.just("a") | TEXTS},
            optional={
                "input_schema": ANYTHING | st.just({"type": "object"}),
                "type": TEXTS,
                "defer_loading": st.booleans(),
            },
        ),
        max_size=2,
    ),
    "tool_choice": st.fixed_dictionaries(
        {"type": st.sampled_from(["auto", "any", "tool", "none"])},
        optional={"name": st.just("a"), "disable_parallel_tool_use": st.booleans()},
    ),
    "thinking": st.fixed_dictionaries({"type": st.sampled_from(["enabled", "disabled", "adaptive", "other"])}),
    "output_config": ANYTHING
    | st.fixed_dictionaries({"format": st.fixed_dictionaries({"type": st.just("json_schema"), "schema": ANYTHING})}),
    "stream": st.booleans(),
    "stop_sequences": st.lists(TEXTS, max_size=3),
    "metadata": ANYTHING,
}
MESSAGE_BODIES = st.builds(
    lambda messages, tokens, asked, wild: {"messages": messages, "max_tokens": tokens, **asked, **wild},
    st.lists(SENT, min_size=1, max_size=4),
    st.integers(0, 40),
    st.fixed_dictionaries({}, optional=ASKED),
    st.dictionaries(st.sampled_from([*sorted(MessagesRequest.model_fields), "whatever"]), ANYTHING, max_size=1),
)


@settings(max_examples=100, deadline=None, suppress_health_check=QUIET)
@given(MESSAGE_BODIES)
def test_no_message_makes_the_server_fail(client: httpx.Client, body: dict[str, Any]) -> None:
    content = json.dumps(body, allow_nan=True).encode("utf-8", "surrogatepass")
    response = client.post("/v1/messages", content=content)
    count = client.post("/v1/messages/count_tokens", content=content)
    if response.status_code == 200:
        assert response.text.endswith('data: {"type":"message_stop"}\n\n') or response.json()["type"] == "message"
        assert count.json()["input_tokens"] > 0
    for answer in (response, count):
        assert answer.status_code < 500, answer.text
        if answer.status_code != 200:
            assert answer.json()["error"]["type"] == "invalid_request_error", answer.text


def check(response: httpx.Response) -> None:
    """Hold an answer to its status and shape."""
    if response.status_code == 200:
        ends = response.text.endswith("data: [DONE]\n\n") or _ends_in_a_response(response.text)
        assert ends or response.json()["object"] in ("chat.completion", "text_completion", "response")
    else:
        assert 400 <= response.status_code < 500, response.text
        assert response.json()["error"]["message"]


def _ends_in_a_response(text: str) -> bool:
    _, found, last = text.rpartition("\ndata: ")
    return bool(found) and json.loads(last)["type"] in ("response.completed", "response.incomplete", "response.failed")


@settings(max_examples=25, deadline=None, suppress_health_check=QUIET)
@given(
    st.binary(max_size=60),
    st.dictionaries(
        st.sampled_from(["x-session-id", "x-turn-type", "x-session-done"]),
        st.text(alphabet=st.characters(min_codepoint=33, max_codepoint=126), max_size=300),
    ),
)
def test_no_bytes_or_headers_make_the_server_fail(client: httpx.Client, body: bytes, headers: dict[str, str]) -> None:
    assert 400 <= client.post("/v1/chat/completions", content=body).status_code < 500
    request = {"messages": [{"role": "user", "content": "hi"}]}
    check(client.post("/v1/chat/completions", json=request, headers=headers))


@pytest.mark.parametrize("depth", [40, 300, 990, 5000])
@pytest.mark.parametrize("field", ["metadata", "tools", "messages"])
def test_deep_nesting_is_refused_or_answered(client: httpx.Client, depth: int, field: str) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth
    nested = {
        "metadata": f'"metadata": {deep}',
        "tools": f'"tools": [{{"type": "function", "function": {{"name": "a", "parameters": {deep}}}}}]',
        "messages": f'"messages": [{{"role": "user", "content": "x", "extra": {deep}}}]',
    }[field]
    messages = '"messages": [{"role": "user", "content": "x"}], ' if field != "messages" else ""
    response = client.post("/v1/chat/completions", content=f"{{{messages}{nested}}}")
    check(response)
    assert response.status_code == (200 if depth == 40 else 400)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_every_route_does_what_its_description_says(url: str, mode: GenerationMode) -> None:
    description = schemathesis.openapi.from_url(f"{url}/openapi.json")
    operations = [operation.ok() for operation in description.get_all_operations()]
    labels = {operation.label for operation in operations}
    assert labels > WITH_BODY
    statuses: dict[str, set[int]] = {label: set() for label in labels}
    for operation in operations:
        if mode is GenerationMode.NEGATIVE and operation.label not in WITH_BODY:
            continue

        @settings(max_examples=8, derandomize=True, deadline=None, suppress_health_check=QUIET)
        @given(case=operation.as_strategy(generation_mode=mode))
        def holds(case: schemathesis.Case) -> None:
            response = case.call(timeout=30)
            statuses[case.operation.label].add(response.status_code)
            case.validate_response(response, checks=CHECKS)

        holds()
    assert 400 in statuses["POST /v1/chat/completions"] or mode is GenerationMode.POSITIVE
    assert 200 in statuses["POST /v1/chat/completions"] or mode is GenerationMode.NEGATIVE
