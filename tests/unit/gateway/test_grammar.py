"""What a request demands of the reply's form, as the engine's grammar; and that such turns are not trained."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest
import xgrammar

from chat_codec.formats import JSON_IN_TAGS, PLAIN_JSON, XML_IN_TAGS, ToolFormat
from chat_codec.reply_parser import MessageBuilder, ReasoningFormat
from openclaw.config.runtime import RuntimeConfig
from openclaw.gateway.errors import ApiError
from openclaw.gateway.sampling import reply_grammar
from openclaw.gateway.schema import ChatRequest, parse_request
from tests.unit.gateway.conftest import Stack, Starter

USER: Any = [{"role": "user", "content": "What is 2 + 3?"}]
SCHEMA = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "read", "parameters": PATH}},
    {"type": "function", "function": {"name": "add", "parameters": SCHEMA}},
]
JSON_SCHEMA: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True}}
THINK = ReasoningFormat()
READ = {
    JSON_IN_TAGS: '<tool_call>\n{"name": "read", "arguments": {"path": "a"}}\n</tool_call>',
    XML_IN_TAGS: "<tool_call>\n<function=read>\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>",
    PLAIN_JSON: '{"name": "read", "arguments": {"path": "a"}}',
}
ADD = {
    JSON_IN_TAGS: '<tool_call>\n{"name": "add", "arguments": {"sum": 5}}\n</tool_call>',
    XML_IN_TAGS: "<tool_call>\n<function=add>\n<parameter=sum>\n5\n</parameter>\n</function>\n</tool_call>",
    PLAIN_JSON: '{"name": "add", "arguments": {"sum": 5}}',
}


def request_of(**changes: Any) -> ChatRequest:
    return parse_request(json.dumps({"messages": USER, **changes}).encode())[0]


@pytest.fixture(scope="module")
def compiler(tokenizer: Any) -> xgrammar.GrammarCompiler:
    return xgrammar.GrammarCompiler(xgrammar.TokenizerInfo.from_huggingface(tokenizer, vocab_size=len(tokenizer)))


def accepts(compiler: xgrammar.GrammarCompiler, tokenizer: Any, grammar: str | None, text: str) -> bool:
    """Return whether the engine's grammar library lets a reply be ``text``, and end there."""
    assert grammar is not None
    matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(grammar))
    return matcher.accept_string(text) and matcher.accept_token(tokenizer.eos_token_id)


@pytest.mark.parametrize(
    ("changes", "good", "bad"),
    [
        ({"response_format": {"type": "json_object"}}, ['{"a": [1]}', "{}"], ["[1]", "5", "{} ok"]),
        ({"response_format": JSON_SCHEMA}, ['{"sum": 5}', '{\n  "sum": 5\n}'], ["{}", '{"sum": "5"}']),
    ],
)
def test_response_format(compiler: Any, tokenizer: Any, changes: Any, good: list[str], bad: list[str]) -> None:
    request = request_of(**changes)
    whole = reply_grammar(request, None, None, "none")
    closed = reply_grammar(request, None, THINK, "closed")
    opened = reply_grammar(request, None, THINK, "open")
    maybe = reply_grammar(request, None, THINK, "none")
    for text in good:
        assert all(accepts(compiler, tokenizer, grammar, text) for grammar in (whole, closed, maybe))
        assert accepts(compiler, tokenizer, opened, f"so {{ hm\n</think>\n\n{text}")
        assert accepts(compiler, tokenizer, maybe, f"<think>\nhm\n</think>\n\n{text}")
        assert not accepts(compiler, tokenizer, opened, text)
    for text in bad:
        assert not any(accepts(compiler, tokenizer, grammar, text) for grammar in (whole, closed, maybe))


@pytest.mark.parametrize("tool_format", [JSON_IN_TAGS, XML_IN_TAGS, PLAIN_JSON])
def test_tool_choice(compiler: Any, tokenizer: Any, tool_format: ToolFormat) -> None:
    read, add = READ[tool_format], ADD[tool_format]

    def fits(text: str, **changes: Any) -> bool:
        request = request_of(tools=TOOLS, **changes)
        return accepts(compiler, tokenizer, reply_grammar(request, tool_format, None, "none"), text)

    assert fits(read, tool_choice="required")
    assert fits(f"{read}\n{add}", tool_choice="required")
    assert not fits("No.", tool_choice="required")
    assert not fits(f"{read}\n{add}", tool_choice="required", parallel_tool_calls=False)
    named = {"type": "function", "function": {"name": "add"}}
    assert fits(add, tool_choice=named)
    assert not fits(read, tool_choice=named)
    assert not fits(f"{add}\n{add}", tool_choice=named)
    assert fits("No.", parallel_tool_calls=False)
    assert fits(f"Yes: {read}", parallel_tool_calls=False)
    assert not fits(f"{read}\n{add}", parallel_tool_calls=False)
    assert fits('{"sum": 5}', response_format=JSON_SCHEMA)
    assert fits(add, response_format=JSON_SCHEMA)
    assert not fits("No.", response_format=JSON_SCHEMA)


@pytest.mark.parametrize("tool_format", [JSON_IN_TAGS, XML_IN_TAGS, PLAIN_JSON])
def test_the_parser_reads_what_the_grammar_lets_through(tool_format: ToolFormat) -> None:
    parser, builder = tool_format.parser(request_of(tools=TOOLS).tool_schemas, str), MessageBuilder()
    for delta in [*parser.push(f"{READ[tool_format]}\n{ADD[tool_format]}"), *parser.finish()]:
        builder.add(delta)
    calls = [call["function"] for call in builder.message()["tool_calls"]]
    assert [(call["name"], json.loads(call["arguments"])) for call in calls] == [
        ("read", {"path": "a"}),
        ("add", {"sum": 5}),
    ]


def test_strict_functions_keep_to_their_schema(compiler: Any, tokenizer: Any) -> None:
    strict = [{"type": "function", "function": {**TOOLS[1]["function"], "strict": True}}]
    grammar = reply_grammar(request_of(tools=strict), JSON_IN_TAGS, None, "none")
    assert accepts(compiler, tokenizer, grammar, f"First. {ADD[JSON_IN_TAGS]} Then.")
    assert not accepts(compiler, tokenizer, grammar, ADD[JSON_IN_TAGS].replace("5", '"5"'))


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tools": TOOLS},
        {"tools": TOOLS, "tool_choice": "auto", "parallel_tool_calls": True},
        {"tools": TOOLS, "tool_choice": "none", "parallel_tool_calls": False},
        {"parallel_tool_calls": False},
        {"response_format": {"type": "text"}},
    ],
)
def test_a_request_that_demands_nothing_has_no_grammar(changes: Any) -> None:
    assert reply_grammar(request_of(**changes), JSON_IN_TAGS, THINK, "none") is None


def test_without_a_tool_format_calls_cannot_be_demanded() -> None:
    with pytest.raises(ApiError, match="TOOL_CALL_PARSER") as caught:
        reply_grammar(request_of(tools=TOOLS, tool_choice="required"), None, None, "none")
    assert caught.value.param == "tool_choice"


async def test_a_demanded_form_is_served_and_not_trained(stack: Stack) -> None:
    stack.say('{"sum": 5}', ADD[JSON_IN_TAGS], ADD[JSON_IN_TAGS])
    create = stack.client.chat.completions.create
    reply = await create(model="any", messages=USER, response_format=JSON_SCHEMA)
    assert json.loads(reply.choices[0].message.content) == {"sum": 5}
    named: Any = {"type": "function", "function": {"name": "add"}}
    reply = await create(model="any", messages=USER, tools=TOOLS, tool_choice=named)
    assert reply.choices[0].finish_reason == "tool_calls"
    await create(model="any", messages=USER, tools=TOOLS)
    first, second, third = [request["sampling_params"] for request in stack.engine.requests]
    assert json.loads(first["structural_tag"])["format"]["json_schema"] == SCHEMA
    assert "read" not in second["structural_tag"]
    assert "structural_tag" not in third
    assert [turn.reason for turn in stack.turns()] == ["grammar", "grammar", None]


async def test_xml_calls_through_the_gateway(start: Starter) -> None:
    stack = await start(tool_call_parser="qwen3_coder")
    stack.say(f"<think>\nhm\n</think>\n\n{ADD[XML_IN_TAGS]}", ADD[XML_IN_TAGS])
    create = stack.client.chat.completions.create
    whole = await create(model="any", messages=USER, tools=TOOLS)
    (call,) = whole.choices[0].message.tool_calls
    assert json.loads(call.function.arguments) == {"sum": 5}
    pieces = []
    async for chunk in await create(model="any", messages=USER, tools=TOOLS, stream=True):
        for piece in chunk.choices[0].delta.tool_calls or []:
            pieces.append((piece.function.name, piece.function.arguments))
    assert pieces[0] == ("add", "")
    assert json.loads("".join(arguments for _, arguments in pieces)) == {"sum": 5}


async def test_a_reply_with_a_grammar_is_not_resumed(stack: Stack) -> None:
    stack.say('{"sum": 5}')
    stack.engine.break_after = 2
    with pytest.raises(openai.InternalServerError) as caught:
        await stack.client.chat.completions.create(model="any", messages=USER, response_format=JSON_SCHEMA)
    assert caught.value.code == "engine_unavailable"
    assert len(stack.engine.requests) == 1


ABORT = {"type": "abort", "message": "Unsupported type", "status_code": 400}
REFUSALS = [
    {"output_ids": [7], "meta_info": {"completion_tokens": 1, "output_token_logprobs": [], "finish_reason": ABORT}},
    {"error": {"message": "logit_bias must has keys in [0, 1279], got 9999.", "code": 400}},
]


@pytest.mark.parametrize("event", REFUSALS)
@pytest.mark.parametrize("stream", [True, False])
async def test_what_the_engine_refuses_is_a_400_at_once(stack: Stack, event: dict[str, Any], stream: bool) -> None:
    stack.say("never sent")
    stack.engine.events_first = [event]
    with pytest.raises(openai.BadRequestError) as caught:
        await stack.client.chat.completions.create(
            model="any", messages=USER, response_format=JSON_SCHEMA, stream=stream
        )
    assert caught.value.param == "response_format"
    assert len(stack.engine.requests) == 1
    assert stack.turns() == []


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "sometimes", "tools": TOOLS}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "no"}}, "tools": TOOLS}, "tool_choice"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_object", "json_schema": {"name": "a"}}}, "response_format"),
        ({"response_format": {"type": "grammar"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": 5}}}, "response_format"),
    ],
)
def test_a_demand_that_cannot_be_read_is_refused_by_name(change: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as caught:
        request_of(**change)
    assert (caught.value.status, caught.value.param) == (400, param)


def test_generic_reasoning_needs_its_tags() -> None:
    for changes in ({"reasoning_parser": "generic"}, {"reasoning_tags": "<a> </a>"}):
        with pytest.raises(Exception, match="need each other"):
            RuntimeConfig(**changes).validate()
